//! The program and the library behind it, but for `warpweft quantize`, which has tests of its own beside these.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../hostile/mod.rs"]
mod hostile;
#[path = "../../../../tests/random_weight/mod.rs"]
mod random_weight;
#[path = "../../../../tests/trainer/mod.rs"]
mod trainer;

mod calibrate;
mod errors;
mod examples;
mod foreign;
mod frozen_base;
mod hostile_config;
mod simulate;
