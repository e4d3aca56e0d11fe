//! The simulator: closed forms, what it shares with the CPU backend, worlds of thousands of ranks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod closed_forms;
mod messages;
mod programs;
mod replicas;
mod weak_scaling;
mod worlds;
#[path = "../wrapped/mod.rs"]
mod wrapped;
