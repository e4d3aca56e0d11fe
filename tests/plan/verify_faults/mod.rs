//! Seeded faults: valid plans, one edit each, and the error that must name it.
//!
//! The classes are those of real bugs in schedulers of this kind. Each test cites the law that
//! catches it, and each class has a test of its name:
//!
//! | class | law | file | test |
//! |---|---|---|---|
//! | neighbours sharing a gather buffer | PL-3 | `plan/verify_faults/races.rs` | `neighbours_sharing_a_gather_buffer_are_refused` |
//! | recompute gathers on one address | PL-2, PL-3 | `plan/verify_faults/classes.rs` | `recompute_gathers_on_one_address_are_refused` |
//! | gather before the optimizer's publish (stale version) | PL-2 | `plan/verify_faults/uses.rs` | `a_gather_before_the_optimizer_s_publish_brings_a_stale_version_and_is_refused` |
//! | gradient overwritten while its reduction reads it | PL-3 | `plan/verify_faults/races.rs` | `a_gradient_overwritten_while_its_reduction_reads_it_is_refused` |
//! | buffer freed for a stream that still uses it | PL-3 | `plan/verify_faults/classes.rs` | `a_buffer_freed_for_a_stream_that_still_uses_it_is_refused` |
//! | only the last of several gradients of a tied weight surviving | PL-4 | `plan/verify_faults/gradients.rs` | `only_the_last_of_several_gradients_of_a_tied_weight_surviving_is_refused` |
//! | gradients of earlier steps of a sum overwritten by a later one | PL-4 | `plan/verify_faults/accumulations.rs` | `a_contribution_that_overwrites_what_earlier_steps_added_is_refused` |
//! | gradients summed before all of them are there, or when some are gone | PL-4 | `plan/verify_faults/received.rs` | `a_sum_before_its_exchange_is_refused` |
//! | a rank's own share of a sum overwritten while peers have theirs | PL-4 | `plan/verify_faults/received.rs` | `an_own_gradient_overwritten_between_exchange_and_sum_is_refused_even_when_ordered` |
//! | blocks of ranks added up before one of them is complete | PL-4 | `plan/verify_faults/levels.rs` | `sums_of_blocks_exchanged_before_they_are_made_are_refused` |
//! | blocks of ranks that count twice, or not at all | PL-4 | `plan/verify_faults/levels.rs` | `sums_of_blocks_over_the_wrong_ranks_are_refused` |
//! | replicas that drift apart, or count a gradient once for each of them | PL-4 | `plan/verify_faults/replicas.rs` | `a_gradient_summed_over_the_replicas_twice_is_refused` |
//! | a sum of sequence parallelism without the tensor group | PL-4 | `plan/verify_faults/tensor.rs` | `a_gradient_of_split_tokens_that_the_tensor_group_does_not_sum_is_refused` |
//! | a gradient of alike tokens counted once for each tensor-parallel rank | PL-4 | `plan/verify_faults/tensor.rs` | `a_gradient_of_alike_tokens_divided_as_one_of_split_tokens_is_refused` |
//! | a norm that counts a part twice, or not | PL-4 | `plan/verify_faults/tensor.rs` | `a_part_or_a_copy_that_the_norm_counts_twice_or_not_at_all_is_refused` |
//! | a norm of squares that were taken before the last contribution | PL-4 | `plan/verify_faults/squares.rs` | `squares_that_were_taken_before_the_last_contribution_are_refused` |
//! | an expert's gradient summed with its neighbour's | PL-4 | `plan/verify_faults/experts.rs` | `a_gradient_of_an_expert_that_is_summed_with_those_of_others_is_refused` |
//! | an expert's gradient divided by the wrong ranks, or counted twice in the norm | PL-4 | `plan/verify_faults/experts.rs` | `an_expert_is_divided_as_any_weight_and_is_in_the_norm_once` |
//! | a save that has some values of the step after it | PL-9 | `plan/verify_faults/snapshots.rs` | `a_copy_of_a_slot_that_was_updated_is_refused` |
//! | un-joined fork in a captured step | PL-7 | `cpu_backend/checked.rs` | `an_un_joined_fork_in_a_captured_step_is_refused` |
//! | captured step whose warm-up pollutes main grads | PL-4, PL-7 | `session/ranks/mod.rs` | `a_captured_step_whose_warm_up_pollutes_main_grads_and_optimizer_is_refused` |
//! | format silently falling back to BF16 | PL-2, PL-6 | `plan/verify_faults/classes.rs` | `a_format_that_silently_falls_back_to_bf16_is_refused` |
//! | ranks disagreeing on order | PL-1, PL-5 | `session/ranks/mod.rs` | `ranks_that_disagree_on_order_are_refused_before_anything_runs` |
//!
//! A fork that does not join is no property of a plan: `Checked` catches it when the capture ends. A
//! warm-up that ran as a step is caught by the rank's count of steps; a plan that would let it reach main
//! grads is refused (`gradients`). Ranks that disagree are caught by fingerprints before anything is
//! reserved, and on the CPU by what they bring to a collective (`cpu_backend/poison.rs`).

mod accumulations;
mod arrived;
mod assembles;
mod bf16;
mod bytes;
mod calls;
mod casts;
mod chunks;
mod classes;
mod collective_calls;
mod collective_slots;
mod counts;
mod custom_optimizer;
mod delayed;
mod edges;
mod edit;
mod experts;
mod frozen;
mod gradients;
mod groups;
mod levels;
mod malformed;
mod matrices;
mod micro_batches;
mod mxfp8;
mod order;
mod prepared;
mod programs;
mod races;
mod received;
mod replicas;
mod rounds;
mod scale_groups;
mod slices;
mod snapshots;
mod squares;
mod stages;
mod tensor;
mod uses;

use warpweft_plan::plan::verify;

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

/// The table above, so that a class keeps its test.
#[test]
fn every_class_of_the_table_has_the_test_it_names() {
    let rows = include_str!("mod.rs").lines().filter_map(|line| line.strip_prefix("//! | ")).skip(1);
    let mut classes = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let (file, test) = (cells[2], cells[3]);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(text.contains(&format!("#[test]\nfn {test}() {{")), "{file} has no test `{test}`");
        classes += 1;
    }
    assert_eq!(classes, 23);
}
