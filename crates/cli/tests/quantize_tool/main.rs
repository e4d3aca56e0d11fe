//! `warpweft quantize`, through the library and through the program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../../../tests/golden_file/mod.rs"]
mod golden_file;
#[path = "../hostile/mod.rs"]
mod hostile;
#[path = "../../../../tests/random_weight/mod.rs"]
mod random_weight;

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
