//! The program `warpweft` and the library room behind it, `tool`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod calibrate;
mod frozen_base;
mod hostile;
mod hostile_config;
#[cfg(unix)]
mod names;
mod quantize;
mod simulate;
