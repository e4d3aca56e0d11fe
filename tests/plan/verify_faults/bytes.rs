//! PL-6: slots, regions, counts.

use warpweft_plan::layout::{ALIGNMENT, Content};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{gathered, position, refused, shard, slot, weight};
use super::programs::{f32_training, nvfp4_training};

fn transient(plan: &StepPlan) -> usize {
    plan.arena.slots.iter().position(|slot| matches!(slot.content, Content::Gathered(..))).unwrap()
}

/// PL-6
#[test]
fn a_slot_smaller_than_its_content_is_refused() {
    let mut plan = nvfp4_training();
    let shrunk = transient(&plan);
    plan.arena.slots[shrunk].region.bytes -= 1;
    let needed = plan.arena.slots[shrunk].region.bytes + 1;
    let error = refused(
        &plan,
        &["PL-6 (", "): slot `", "but its content (`embedding` in nvfp4_2d)", &format!(" takes {needed}; ")],
    );
    assert!(matches!(error, VerifyError::Bytes { .. }));
}

/// PL-6
#[test]
fn a_slot_off_its_alignment_or_outside_its_region_is_refused() {
    let mut plan = nvfp4_training();
    let moved = transient(&plan);
    plan.arena.slots[moved].region.offset += 16;
    refused(&plan, &["PL-6", "no multiple of 256"]);
    let mut plan = nvfp4_training();
    plan.arena.slots[moved].region.offset = plan.arena.bytes().next_multiple_of(ALIGNMENT);
    refused(&plan, &["PL-6", "outside its region"]);
    plan.arena.slots[moved].region.offset = 0;
    refused(&plan, &["PL-6", "from byte 0 on", "outside its region"]);
    plan.arena.slots[moved].region.offset = usize::MAX / ALIGNMENT * ALIGNMENT;
    refused(&plan, &["PL-6", "outside its region"]);
    plan.arena.transient_bytes = usize::MAX;
    refused(&plan, &["PL-6", "larger than memory can be"]);
}

/// PL-6
#[test]
fn resident_slots_lie_apart_and_are_unique() {
    let mut plan = nvfp4_training();
    let (one, other) = (shard(&plan, "block.0"), shard(&plan, "block.1"));
    plan.arena.slots[one.index()].region = plan.arena.region(other);
    refused(&plan, &["PL-6 (", "): resident slot `", "inside slot `block."]);
    let mut plan = nvfp4_training();
    let twin = plan.arena.slots[one.index()].content;
    let state = slot(&plan, Content::first_moment(weight(&plan, "block.1")));
    plan.arena.slots[state.index()].content = twin;
    refused(&plan, &["PL-6", "same resident content"]);
}

/// PL-6. Every write goes into a slot that was sized for it.
#[test]
fn a_task_that_writes_into_another_content_s_slot_is_refused() {
    let mut plan = nvfp4_training();
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    let record = slot(&plan, Content::NormRecord);
    gathered(&mut plan, gather).to = record;
    super::edit::serialize(&mut plan);
    refused(
        &plan,
        &[
            "PL-6 (",
            "): task 2 (all-gather of embedding) writes",
            "into slot `norm record`, which was declared for other content",
        ],
    );
}

/// PL-6
#[test]
fn every_wrong_count_is_refused() {
    type Damage = fn(&mut StepPlan);
    let counts: [(&str, Damage); 7] = [
        ("bounds.live_bytes is", |plan| plan.bounds.live_bytes -= 1),
        ("bounds.transient_bytes is", |plan| plan.bounds.transient_bytes += 1),
        ("bounds.resident_bytes is", |plan| plan.bounds.resident_bytes += 1),
        ("bounds.wire_bytes is", |plan| plan.bounds.wire_bytes += 1),
        ("bounds.live_weight_bytes is", |plan| plan.bounds.live_weight_bytes += 1),
        ("bounds.live_weight_bytes is", |plan| plan.bounds.live_weight_bytes -= 1),
        ("live bytes at bounds.live_peak is", |plan| {
            plan.bounds.live_peak = warpweft_base::id::TaskId::new(0)
        }),
    ];
    for (says, damage) in counts {
        let mut plan = f32_training();
        damage(&mut plan);
        refused(&plan, &["PL-6", says]);
    }
}

/// PL-6. Prices and traces are made from it, so a collective that is said to be cheap would be planned as if
/// it were.
#[test]
fn a_task_that_says_it_receives_other_bytes_than_its_op_does_is_refused() {
    let mut seen = std::collections::BTreeSet::new();
    for (name, valid) in super::programs::all() {
        for task in 0..valid.tasks.len() {
            let mut plan = valid.clone();
            let received = plan.tasks[task].wire_bytes;
            plan.tasks[task].wire_bytes += 4;
            plan.bounds.wire_bytes += 4;
            let group = plan.tasks[task].op.group();
            let ranks = group.map_or(1, |group| plan.weights.mesh.size(group));
            let error = refused(
                &plan,
                &[
                    "PL-6 (",
                    &format!("): task {task} ({} of", plan.tasks[task].op.name()),
                    &format!("says that it receives {} bytes", received + 4),
                    &format!("its op receives {received} among {ranks} ranks"),
                ],
            );
            assert!(matches!(error, VerifyError::Bytes { .. }), "{name}: {error}");
            if received > 0 {
                seen.insert(plan.tasks[task].op.name());
            }
        }
    }
    assert_eq!(seen.len(), 8, "every kind of collective: {seen:?}");
}

/// PL-6
#[test]
fn a_plan_over_its_budget_is_refused() {
    let mut plan = f32_training();
    plan.policy.budget = Some(plan.arena.transient_bytes - 1);
    refused(&plan, &["PL-6 (", "): the transient region has", "more than the budget"]);
    plan.policy.budget = Some(plan.arena.transient_bytes);
    assert!(warpweft_plan::plan::verify(&plan).is_ok());
}
