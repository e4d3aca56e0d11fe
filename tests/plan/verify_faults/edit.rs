//! Tools for damaging a plan.
//!
//! An edit that moves or removes a task renumbers the tasks after it. [`serialize`] then puts
//! every task after the one before it in T and renumbers the communicators, so that the fault a
//! test wants to show is the only one left. [`spread`] keeps memory out of the way likewise.

use warpweft_base::id::SlotId;
use warpweft_format::Orientation;
use warpweft_plan::layout::Content;
use warpweft_plan::op::{
    AllGather, Compute, ExchangeGradient, GatherPart, Op, ReducePart, ReduceScatter, SumGradient, SumPart,
};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

pub(crate) use warpweft_testing::plan_books::{recount, serialize, spread, twin};

/// The error a damaged plan is refused with; its text must contain every word of `says`.
#[track_caller]
pub(crate) fn refused(plan: &StepPlan, says: &[&str]) -> VerifyError {
    let error = *verify(plan).expect_err("the fault was not found");
    let text = error.to_string();
    for word in says {
        assert!(text.contains(word), "`{word}` is missing from: {text}");
    }
    error
}

/// Position of the `nth` task, counted from 0, whose op satisfies `wanted`.
#[track_caller]
pub(crate) fn position(plan: &StepPlan, nth: usize, wanted: impl Fn(&Op) -> bool) -> usize {
    let mut found =
        plan.tasks.iter().enumerate().filter(|(_, task)| wanted(&task.op)).map(|(position, _)| position);
    found.nth(nth).expect("the sample plan has such a task")
}

/// Position of the compute task of the call called `name`.
#[track_caller]
pub(crate) fn call(plan: &StepPlan, name: &str) -> usize {
    position(
        plan,
        0,
        |op| matches!(op, Op::Compute(Compute { call, .. }) if plan.calls[call.index()].name == name),
    )
}

/// The first part of the gather at `position`.
#[track_caller]
pub(crate) fn gathered(plan: &mut StepPlan, position: usize) -> &mut GatherPart {
    match &mut plan.tasks[position].op {
        Op::AllGather(AllGather { parts, .. }) => &mut parts[0],
        other => panic!("a {} is no gather", other.name()),
    }
}

/// Does the op carry gradients to their owners, summed or not?
pub(crate) fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::ReduceScatter(_) | Op::ExchangeGradient(_))
}

/// The parts of the reduction at `position`.
#[track_caller]
pub(crate) fn reduced_parts(plan: &mut StepPlan, position: usize) -> &mut Vec<ReducePart> {
    match &mut plan.tasks[position].op {
        Op::ReduceScatter(ReduceScatter { parts, .. })
        | Op::ExchangeGradient(ExchangeGradient { parts, .. }) => parts,
        other => panic!("a {} is no reduction", other.name()),
    }
}

/// The first of them.
#[track_caller]
pub(crate) fn reduced(plan: &mut StepPlan, position: usize) -> &mut ReducePart {
    &mut reduced_parts(plan, position)[0]
}

/// The parts of the sum at `position`.
#[track_caller]
pub(crate) fn summed(plan: &mut StepPlan, position: usize) -> &mut Vec<SumPart> {
    match &mut plan.tasks[position].op {
        Op::SumGradient(SumGradient { parts, .. }) => parts,
        other => panic!("a {} sums no gradients", other.name()),
    }
}

/// The slot with this content.
#[track_caller]
pub(crate) fn slot(plan: &StepPlan, content: Content) -> SlotId {
    plan.arena.find(content).expect("the sample plan has such a slot")
}

/// The weight called `name`.
#[track_caller]
pub(crate) fn weight(plan: &StepPlan, name: &str) -> warpweft_base::id::WeightId {
    let position = plan.weights.layouts.iter().position(|layout| layout.name == name);
    warpweft_base::id::WeightId::at(position.expect("the sample plan has such a weight"))
}

/// The rowwise shard of the weight called `name`.
#[track_caller]
pub(crate) fn shard(plan: &StepPlan, name: &str) -> SlotId {
    slot(plan, Content::Shard(weight(plan, name), Orientation::Rowwise))
}

pub(crate) fn remove(plan: &mut StepPlan, position: usize) {
    plan.tasks.remove(position);
    serialize(plan);
}

/// Inserts a copy of the task at `position` right after it.
pub(crate) fn repeat(plan: &mut StepPlan, position: usize) {
    let task = plan.tasks[position].clone();
    plan.tasks.insert(position + 1, task);
    serialize(plan);
}

/// Moves the task at `from` so that it ends up at position `to`.
pub(crate) fn relocate(plan: &mut StepPlan, from: usize, to: usize) {
    let task = plan.tasks.remove(from);
    plan.tasks.insert(to, task);
    serialize(plan);
}
