//! Linear layers on a GPU against products of the dequantized operands in f64; they skip, and say so, where
//! there is none.

#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::Write;

mod dropped;
#[path = "../cuda_kernels/gpu.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod gpu;
mod in_a_session;
mod kept;
mod muon;
mod newton_schulz;
mod products;
mod recipes;
mod reference;
mod refusals;
mod rig;
mod surroundings;

/// Says on stderr that something was skipped, also where the harness keeps what tests print.
fn say_skipped(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {what}");
}
