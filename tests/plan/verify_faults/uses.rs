//! PL-2: the weights that a call would compute with.

use warpweft_base::id::{LaneId, SlotId};
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::Form;
use warpweft_plan::op::{AllGather, Assemble, Compute, Op, OperandRole};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{
    call, gathered, position, refused, relocate, remove, serialize, shard, slot, spread, weight,
};
use super::programs::{
    all, evaluation, f32_training, mxfp8_training, nvfp4_training, quantize_then_evaluate,
};

fn gather(plan: &StepPlan, name: &str, nth: usize) -> usize {
    let wanted = weight(plan, name);
    position(
        plan,
        nth,
        |op| matches!(op, Op::AllGather(AllGather { parts, .. }) if parts[0].weight == wanted),
    )
}

fn assemble(plan: &StepPlan, name: &str) -> usize {
    let wanted = weight(plan, name);
    position(plan, 0, |op| matches!(op, Op::Assemble(Assemble { parts }) if parts[0].weight == wanted))
}

/// Lets a call read its `nth` use from another slot.
fn redirect_use(plan: &mut StepPlan, name: &str, nth: usize, to: SlotId) {
    let position = call(plan, name);
    let Op::Compute(Compute { operands, .. }) = &mut plan.tasks[position].op else { unreachable!() };
    operands.iter_mut().find(|operand| operand.role == OperandRole::Use(nth)).unwrap().slot = to;
    serialize(plan);
}

/// PL-2
#[test]
fn a_gather_of_another_weight_s_shard_is_refused() {
    let mut plan = nvfp4_training();
    let (position, other) = (gather(&plan, "block.0", 0), shard(&plan, "block.1"));
    gathered(&mut plan, position).from = other;
    let error = refused(
        &plan,
        &[
            "PL-2 (",
            "): task",
            "needs the whole rowwise shard of `block.0`",
            "holds the rowwise shard of `block.1` at version 0",
        ],
    );
    assert!(matches!(error, VerifyError::Use { .. }));
}

/// PL-2
#[test]
fn every_gather_transpose_and_dequantize_is_missed_when_it_is_dropped() {
    let mut dropped = 0;
    for (name, plan) in all() {
        let feeds = |op: &Op| matches!(op, Op::AllGather(_) | Op::Transpose(_) | Op::Dequantize(_));
        let feeding: Vec<usize> = (0..plan.tasks.len()).filter(|task| feeds(&plan.tasks[*task].op)).collect();
        for task in feeding {
            let mut plan = plan.clone();
            remove(&mut plan, task);
            let error = refused(&plan, &["PL-2", "holds nothing"]);
            assert!(matches!(error, VerifyError::Use { .. }), "{name}: {error}");
            dropped += 1;
        }
    }
    assert!(dropped > 25, "{dropped}");
}

/// PL-2. *Gather before the optimizer's publish*: the shards at entry are a step behind.
#[test]
fn shards_one_version_behind_the_masters_are_refused() {
    for mut plan in [f32_training(), nvfp4_training(), evaluation()] {
        let after = plan.entry.masters;
        let (entry, exit) = (after.next(), plan.exit.masters.next());
        plan.entry.masters = entry;
        plan.exit.masters = exit;
        plan.exit.shards = Some(if plan.updates_weights { exit } else { after });
        refused(&plan, &["PL-2", "at version 1 for call", "at version 0"]);
    }
}

/// PL-2. *Gather before the optimizer's publish*: the gather is issued before this step's cast.
#[test]
fn a_gather_before_the_optimizer_s_publish_brings_a_stale_version_and_is_refused() {
    let mut plan = quantize_then_evaluate();
    let from = gather(&plan, "block.0", 0);
    relocate(&mut plan, from, 0);
    refused(
        &plan,
        &[
            "PL-2",
            "shards of `block.0` at version 1, like this rank's own",
            "at version 0",
            "task 0 (all-gather",
        ],
    );
    let with_it = assemble(&plan, "block.0");
    relocate(&mut plan, with_it, 1);
    refused(
        &plan,
        &["PL-2", "of `block.0` at version 1 for call `block.0`", "at version 0, from task 1 (assemble"],
    );
}

/// PL-2
#[test]
fn a_gather_between_scale_and_cast_takes_a_torn_shard() {
    let mut plan = quantize_then_evaluate();
    let from = gather(&plan, "block.0", 0);
    let cast = position(&plan, 0, |op| matches!(op, Op::PartialCast(_)));
    relocate(&mut plan, from, cast);
    refused(&plan, &["PL-2", "shard of `block.0` with data at version 0 and scales at version 1"]);
}

/// PL-2. Planes of the old version under the new tensor scale.
#[test]
fn a_tensor_scale_of_another_version_than_the_planes_is_refused() {
    let mut plan = quantize_then_evaluate();
    let from = gather(&plan, "embedding", 0);
    relocate(&mut plan, from, 0);
    let with_it = assemble(&plan, "embedding");
    relocate(&mut plan, with_it, 1);
    refused(
        &plan,
        &[
            "PL-2",
            "(dequantize of embedding)",
            "tensor scales of `embedding` (bucket 0) at version 0",
            "at version 1",
        ],
    );
    // A closure that reads planes gets something else for their scales.
    let mut plan = evaluation();
    let (other, position) = (shard(&plan, "block.1"), call(&plan, "block.0"));
    let Op::Compute(Compute { operands, .. }) = &mut plan.tasks[position].op else { unreachable!() };
    operands.iter_mut().find(|operand| operand.role == OperandRole::TensorScale(0)).unwrap().slot = other;
    refused(
        &plan,
        &["PL-2", "(compute of block.0)", "needs the tensor scales of `block.0` (bucket 0) at version 0"],
    );
}

/// PL-2. *Format silently falling back*: planes where dense values were declared, and the reverse.
#[test]
fn planes_are_not_dense_values() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let planes = slot(&plan, Content::Gathered(weight(&plan, "embedding"), Orientation::Rowwise));
    redirect_use(&mut plan, "embed", 0, planes);
    refused(
        &plan,
        &[
            "PL-2",
            "rowwise dense f32 values of `embedding`",
            "holds the gathered rowwise planes of `embedding`",
        ],
    );
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let dense =
        slot(&plan, Content::Dense(weight(&plan, "embedding"), Orientation::Rowwise, ElementType::F32));
    redirect_use(&mut plan, "head", 0, dense);
    refused(
        &plan,
        &["PL-2", "rowwise planes of `embedding`", "holds the dense f32 rowwise values of `embedding`"],
    );
    let mut plan = nvfp4_training();
    for call in &mut plan.calls {
        for usage in call.uses.iter_mut().filter(|usage| usage.form == Form::Dense) {
            usage.form = Form::DenseBf16;
        }
    }
    refused(
        &plan,
        &["PL-2", "dense bf16 values of `embedding`", "holds the dense f32 rowwise values of `embedding`"],
    );
}

/// PL-2
#[test]
fn a_columnwise_use_of_rowwise_planes_is_refused() {
    let mut plan = nvfp4_training();
    let rowwise = slot(&plan, Content::Gathered(weight(&plan, "embedding"), Orientation::Rowwise));
    redirect_use(&mut plan, "head.backward", 0, rowwise);
    refused(
        &plan,
        &["PL-2", "needs the columnwise planes of `embedding` at version 0 for call `head.backward`"],
    );
}

/// PL-2. *Recompute gathers on one address*: the second gather lands before the first one's reader.
#[test]
fn a_gather_that_lands_in_a_neighbour_s_bytes_before_its_reader_is_refused_even_when_ordered() {
    let mut plan = nvfp4_training();
    let first = slot(&plan, Content::Gathered(weight(&plan, "block.0"), Orientation::Rowwise));
    let second = slot(&plan, Content::Gathered(weight(&plan, "block.1"), Orientation::Rowwise));
    plan.arena.slots[first.index()].region.offset = plan.arena.region(second).offset;
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-2", "`block.0 gathered", "holds nothing any more", "(all-gather of block.1) overwrote it"],
    );
}

/// PL-2
#[test]
fn a_use_of_a_replicated_weight_reads_its_own_master() {
    let mut plan = f32_training();
    let other = slot(&plan, Content::Master(weight(&plan, "up")));
    redirect_use(&mut plan, "down.forward", 1, other);
    refused(&plan, &["PL-2", "needs the rowwise dense f32 values of `bias`", "holds the master of `up`"]);
}

/// PL-2
#[test]
fn planes_of_a_format_that_cannot_be_transposed_are_not() {
    let mut plan = mxfp8_training();
    let embedding = weight(&plan, "embedding");
    let derived = position(
        &plan,
        0,
        |op| matches!(op, Op::AllGather(AllGather { parts, .. }) if (parts[0].weight, parts[0].orientation) == (embedding, Orientation::Columnwise)),
    );
    let to = gathered(&mut plan, derived).to;
    let from = slot(&plan, Content::Gathered(embedding, Orientation::Rowwise));
    plan.arena.slots[to.index()].content = Content::Transposed(embedding);
    plan.tasks[derived].op = Op::transpose(embedding, from, to);
    plan.tasks[derived].lane = LaneId::new(1);
    plan.tasks[derived].collective = None;
    spread(&mut plan);
    serialize(&mut plan);
    refused(&plan, &["PL-2", "(transpose of embedding)", "to derive columnwise ones from"]);
}
