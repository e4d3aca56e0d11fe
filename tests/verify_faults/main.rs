//! Seeded faults: valid plans, one edit each, and the error that must name it.
//!
//! The classes are those of real bugs in schedulers of this kind. Each test cites the law that
//! catches it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bytes;
mod calls;
mod delayed;
mod edges;
mod edit;
mod gradients;
mod malformed;
mod micro_batches;
mod order;
mod programs;
mod races;
mod random;
mod uses;

use warpweft::plan::verify;

#[test]
fn the_sample_plans_are_accepted_and_their_proofs_count_something() {
    let mut counts = [0; 4];
    for (name, plan) in programs::all() {
        let proof = verify(&plan).unwrap_or_else(|error| panic!("{name}: {error}"));
        for (count, more) in
            counts.iter_mut().zip([proof.conflicts, proof.uses, proof.gradients, proof.buffers])
        {
            *count += more;
        }
        let text = proof.to_string();
        assert!(text.contains(&format!("{} conflicting accesses", proof.conflicts)), "{text}");
    }
    assert!(counts.iter().all(|count| *count >= 10), "{counts:?}");
}
