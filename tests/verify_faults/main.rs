//! Seeded faults: valid plans, one edit each, and the error that must name it.
//!
//! The classes are those of real bugs in schedulers of this kind. Each test cites the law that
//! catches it, and each class has a test of its name:
//!
//! | class | law | test |
//! |---|---|---|
//! | neighbours sharing a gather buffer | PL-3 | `races` |
//! | recompute gathers on one address | PL-2, PL-3 | `classes` |
//! | gather before the optimizer's publish | PL-2 | `uses` |
//! | gradient overwritten while its reduction reads it | PL-3 | `races` |
//! | buffer freed for a stream that still uses it | PL-3 | `classes` |
//! | only the last of several gradients of a tied weight surviving | PL-4 | `gradients` |
//! | format silently falling back to BF16 | PL-2, PL-6 | `classes` |
//! | un-joined fork in a captured step | PL-7 | `tests/cpu_backend/checked.rs`: no property of a plan, caught by `Checked` |
//! | captured step whose warm-up pollutes main grads | PL-4, PL-7 | `gradients`; `tests/ranks.rs`: caught by the rank's count of steps |
//! | ranks disagreeing on order | PL-1, CO-1 | `tests/ranks.rs`: caught by fingerprints; `tests/cpu_backend/poison.rs` |

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bytes;
mod calls;
mod classes;
mod delayed;
mod edges;
mod edit;
mod gradients;
mod groups;
mod malformed;
mod micro_batches;
mod order;
mod programs;
mod races;
mod uses;

#[path = "../plan_books/mod.rs"]
mod plan_books;

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
