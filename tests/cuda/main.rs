//! Tests that need a CUDA context: kernels, and linear layers made of them.
//!
//! One test at a time has the GPU (`gpu`). Without one each skips, and says so on stderr.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::Write;

mod gpu;
mod kernels;
mod linear;

/// Says on stderr that something was skipped, also where the harness keeps what tests print.
fn say_skipped(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}
