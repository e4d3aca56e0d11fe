//! PL-9 for delayed scaling: each amax is recorded once, after the scales, and under the vote.

use warpweft_base::id::BucketId;
use warpweft_plan::layout::Content;
use warpweft_plan::op::{DelayedScale, FusedScale, Op, PartialCast, RecordAmax};
use warpweft_plan::plan::StepPlan;

use super::edit::{position, refused, relocate, remove, repeat, serialize, slot, spread};
use super::programs::{delayed_prologue, delayed_training};

const BLOCKS: BucketId = BucketId::new(1);

/// Position of the op of this name that concerns the blocks.
fn of_blocks(plan: &StepPlan, name: &str) -> usize {
    position(plan, 0, |op| {
        op.name() == name
            && matches!(
                op,
                Op::DelayedScale(DelayedScale { bucket, .. })
                    | Op::RecordAmax(RecordAmax { bucket, .. })
                    | Op::PartialCast(PartialCast { bucket, .. })
                    if *bucket == BLOCKS
            )
    })
}

/// PL-9
#[test]
fn every_lost_step_of_the_delayed_chain_is_missed() {
    const CAST: (&str, &str) = ("partial cast", "needs the rowwise shard of `block.0`");
    let training = [
        ("delayed scale", "needs the delayed scales of bucket 1 for version 1"),
        CAST,
        ("record amax", "needs the amax history of bucket 1 up to version 1"),
    ];
    let prologue = [("delayed scale", "needs the tensor scales of bucket 1 at version 0"), CAST];
    for (plan, chain) in [(delayed_training(), &training[..]), (delayed_prologue(), &prologue)] {
        for (lost, says) in chain {
            let mut plan = plan.clone();
            let task = of_blocks(&plan, lost);
            remove(&mut plan, task);
            refused(&plan, &["PL-9", says]);
        }
    }
}

/// PL-9. A history that takes one amax twice forgets another one too early.
#[test]
fn an_amax_recorded_twice_is_refused() {
    let mut plan = delayed_training();
    let record = of_blocks(&plan, "record amax");
    repeat(&mut plan, record);
    refused(&plan, &["PL-9", "(record amax of bucket 1)", "at version 2, one on from the history"]);
}

/// PL-9. The scale would be that of the masters it is for: current scaling under another name.
#[test]
fn an_amax_recorded_before_the_scales_are_taken_is_refused() {
    let mut plan = delayed_training();
    spread(&mut plan);
    // The other bucket's maximum comes first, as it does in a plan.
    let (record, scale) = (of_blocks(&plan, "record amax"), of_blocks(&plan, "delayed scale"));
    relocate(&mut plan, record, scale);
    refused(
        &plan,
        &[
            "PL-9",
            "(delayed scale of bucket 1)",
            "needs the amax history of bucket 1 up to version 0",
            "holds the amax history of bucket 1 up to version 1",
        ],
    );
}

/// PL-9. A cast with the factors of the step before, while the tensor scales go on.
#[test]
fn a_cast_before_the_next_scales_is_refused() {
    let mut plan = delayed_training();
    let (cast, scale) = (of_blocks(&plan, "partial cast"), of_blocks(&plan, "delayed scale"));
    relocate(&mut plan, cast, scale);
    refused(
        &plan,
        &[
            "PL-9",
            "(partial cast of bucket 1)",
            "needs the delayed scales of bucket 1 for version 1",
            "holds the delayed scales of bucket 1 for version 0",
        ],
    );
}

/// PL-9. A step that keeps the scales in use, as a prologue does.
#[test]
fn a_step_that_does_not_take_the_next_scales_is_refused() {
    let mut plan = delayed_training();
    let scale = of_blocks(&plan, "delayed scale");
    let Op::DelayedScale(DelayedScale { history, .. }) = &mut plan.tasks[scale].op else { unreachable!() };
    *history = None;
    serialize(&mut plan);
    refused(&plan, &["PL-9", "(partial cast of bucket 1)", "for version 1", "for version 0"]);
}

/// PL-9. A prologue that goes on would cast other bytes than the ones that were there.
#[test]
fn a_prologue_that_takes_the_next_scales_is_refused() {
    let mut plan = delayed_prologue();
    let (scale, amaxes) = (of_blocks(&plan, "delayed scale"), slot(&plan, Content::AmaxHistory(BLOCKS)));
    let Op::DelayedScale(DelayedScale { history, .. }) = &mut plan.tasks[scale].op else { unreachable!() };
    *history = Some(amaxes);
    serialize(&mut plan);
    refused(&plan, &["(delayed scale of bucket 1)", "masters at version 1", "reads no vote"]);
}

/// PL-9. What one rank saw is not what all of them saw (DS-1).
#[test]
fn the_history_takes_maxima_over_all_ranks() {
    let mut plan = delayed_training();
    spread(&mut plan);
    let (record, own) = (of_blocks(&plan, "record amax"), slot(&plan, Content::LocalAmax(BLOCKS)));
    let Op::RecordAmax(RecordAmax { tensor_amax, .. }) = &mut plan.tasks[record].op else { unreachable!() };
    *tensor_amax = own;
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-9", "needs the amaxes of bucket 1 over all ranks", "holds this rank's amaxes of bucket 1"],
    );
}

/// PL-9, PL-10. A skipped step leaves no trace in the history.
#[test]
fn scales_and_history_must_obey_the_vote() {
    for name in ["delayed scale", "record amax"] {
        let mut plan = delayed_training();
        let task = of_blocks(&plan, name);
        match &mut plan.tasks[task].op {
            Op::DelayedScale(DelayedScale { vote, .. }) | Op::RecordAmax(RecordAmax { vote, .. }) => {
                *vote = None
            }
            _ => unreachable!(),
        }
        serialize(&mut plan);
        refused(&plan, &["PL-10", name, "stand only after a clean vote"]);
    }
}

/// PL-9. Two ways to one scale: the last one to write would win.
#[test]
fn a_bucket_has_current_scales_or_delayed_ones() {
    let mut plan = delayed_training();
    spread(&mut plan);
    let current = position(&plan, 0, |op| matches!(op, Op::FusedScale(_)));
    let mut second = plan.tasks[current].clone();
    let Op::FusedScale(FusedScale { bucket, block_amax, tensor_amax, tensor_scale, shards, .. }) =
        &mut second.op
    else {
        unreachable!()
    };
    (*bucket, *block_amax) = (BLOCKS, slot(&plan, Content::BlockAmax(BLOCKS)));
    *tensor_amax = slot(&plan, Content::ReducedAmax(BLOCKS));
    *tensor_scale = slot(&plan, Content::TensorScale(BLOCKS));
    shards.clear();
    plan.tasks.insert(current, second);
    serialize(&mut plan);
    refused(&plan, &["takes scales of bucket 1 from its present amaxes, but they are delayed"]);

    let mut plan = delayed_training();
    let scale = of_blocks(&plan, "delayed scale");
    let Op::DelayedScale(DelayedScale { bucket, .. }) = &mut plan.tasks[scale].op else { unreachable!() };
    *bucket = BucketId::new(0);
    refused(&plan, &["remembers amaxes of bucket 0, whose scales are not delayed"]);
}

/// PL-9
#[test]
fn a_plan_must_have_slots_for_scales_and_history() {
    for (content, named) in [
        (Content::AmaxHistory(BLOCKS), "the amax history of `block.0`"),
        (Content::DelayedScale(BLOCKS), "the delayed scales of `block.0`"),
    ] {
        let mut plan = delayed_prologue();
        let lost = slot(&plan, content);
        plan.tasks.retain(|task| task.op.accesses().iter().all(|(slot, _)| *slot != lost));
        plan.arena.slots[lost.index()].content = Content::NormRecord;
        plan.arena.slots[lost.index()].region.bytes = 16;
        serialize(&mut plan);
        refused(&plan, &["PL-9", named]);
    }
}
