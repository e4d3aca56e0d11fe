//! Plans: declarations, passes, costs, and the verifier.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod declarations;
mod declared_collectives;
mod declared_counts;
mod decoders;
mod decoders_on_meshes;
mod plans;
mod policies;
mod simulator;
mod sizes;
mod step_program;
mod verify_faults;
mod verify_mutations;
