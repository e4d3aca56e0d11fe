//! The CUDA kernels against the CPU's functions, bit for bit; they skip, and say so, where there is no GPU.
//! That the kernels compile is checked wherever NVRTC is, GPU or not.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::Write;

mod activation;
mod adam;
mod block_scaled;
mod codes;
mod compile;
mod exchange;
mod fragments;
mod golden;
mod gpu;
mod gradients;
mod look;
mod moves;
mod planes;
mod stages;
mod stream;
mod values;

/// Says on stderr that something was skipped, also where the harness keeps what tests print.
fn say_skipped(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}
