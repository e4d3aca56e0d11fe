//! The CPU backend and the checker, driven by hand through the `Backend` trait.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod capture;
mod checked;
mod closures;
mod collectives;
mod conformance;
mod delayed;
mod harness;
mod ops;
mod poison;
