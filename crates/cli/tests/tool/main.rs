//! The program `warpweft` and the library behind it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod calibrate;
mod cluster;
mod errors;
mod examples;
mod frozen_base;
mod hostile;
mod hostile_config;
#[cfg(unix)]
mod interrupts;
mod layouts;
#[cfg(unix)]
mod names;
mod quantize;
mod simulate;
mod tune;
