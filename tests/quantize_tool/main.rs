//! `warpweft quantize`, through the library and through the program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../hostile/mod.rs"]
mod hostile;

mod checkpoint;
mod contents;
mod golden;
mod kinds;
mod leftovers;
mod program;
mod refusals;
mod saved;
mod stacks;
mod torn;
