//! The CPU backend and the checker, driven by hand through the `Backend` trait.
//!
//! A program of its own, as every backend has one: the bodies that hold for all name theirs `crate::device`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../backend_bodies/mod.rs"]
#[macro_use]
mod bodies;
mod capture;
mod checked;
mod closures;
mod device;
mod link;
mod poison;
mod products;
mod reduce;
mod replicas;
