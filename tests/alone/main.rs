//! Tests that need a process of their own: they count its allocations, or see everything that is traced in it.
//!
//! A program with a runner of its own, and with an allocator that counts. One test runs at a time, in the
//! order below: the last is seen by a subscriber that stays. `cargo test --test alone -- PART` runs those
//! whose names have PART.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod checkpoint_memory;
mod format_allocations;
mod skipped_steps;
mod steady_state;
mod steady_state_cuda;

use warpweft_testing::{Allocator, alone};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() {
    let all = [
        format_allocations::ALL,
        checkpoint_memory::ALL,
        steady_state::ALL,
        steady_state_cuda::ALL,
        skipped_steps::ALL,
    ];
    alone::run(&all.concat());
}
