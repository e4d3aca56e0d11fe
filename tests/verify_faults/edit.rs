//! Tools for damaging a plan.
//!
//! An edit that moves or removes a task renumbers the tasks behind it. [`serialize`] then puts
//! every task behind the one before it in T and renumbers the communicators, so that the fault a
//! test wants to show is the only one left. [`spread`] keeps memory out of the way likewise.

use warpweft::format::Orientation;
use warpweft::id::{CommSeq, EventId, SlotId, TaskId};
use warpweft::layout::{ALIGNMENT, Content, Residency};
use warpweft::op::{GatherPart, Op, ReducePart};
use warpweft::plan::{StepPlan, VerifyError, verify};

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
    position(plan, 0, |op| matches!(op, Op::Compute { call, .. } if plan.calls[call.index()].name == name))
}

/// The first part of the gather at `position`.
#[track_caller]
pub(crate) fn gathered(plan: &mut StepPlan, position: usize) -> &mut GatherPart {
    match &mut plan.tasks[position].op {
        Op::AllGather { parts } => &mut parts[0],
        other => panic!("a {} is no gather", other.name()),
    }
}

/// The first part of the reduction at `position`.
#[track_caller]
pub(crate) fn reduced(plan: &mut StepPlan, position: usize) -> &mut ReducePart {
    match &mut plan.tasks[position].op {
        Op::ReduceScatter { parts, .. } => &mut parts[0],
        other => panic!("a {} is no reduction", other.name()),
    }
}

/// The slot with this content.
#[track_caller]
pub(crate) fn slot(plan: &StepPlan, content: Content) -> SlotId {
    plan.arena.find(content).expect("the sample plan has such a slot")
}

/// The weight called `name`.
#[track_caller]
pub(crate) fn weight(plan: &StepPlan, name: &str) -> warpweft::id::WeightId {
    let position = plan.weights.layouts.iter().position(|layout| layout.name == name);
    warpweft::id::WeightId::at(position.expect("the sample plan has such a weight"))
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

/// Inserts a copy of the task at `position` right behind it.
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

/// Every task waits for the one before it in T; communicators count anew; releases are forgotten.
pub(crate) fn serialize(plan: &mut StepPlan) {
    let mut next = vec![0; plan.lanes.len()];
    for (position, task) in plan.tasks.iter_mut().enumerate() {
        task.waits = position.checked_sub(1).map(TaskId::at).into_iter().collect();
        task.signals = Some(EventId::at(position));
        task.release = None;
        if let Some((_, sequence)) = &mut task.collective {
            *sequence = CommSeq::new(next[task.lane.index()]);
            next[task.lane.index()] += 1;
        }
    }
    plan.events = plan.tasks.len();
}

/// Gives every transient slot bytes of its own, so that no edit makes two contents meet.
pub(crate) fn spread(plan: &mut StepPlan) {
    let mut end = plan.arena.resident_bytes;
    for slot in plan.arena.slots.iter_mut().filter(|slot| slot.residency == Residency::Transient) {
        slot.region.offset = end;
        end += slot.region.bytes.next_multiple_of(ALIGNMENT);
    }
    plan.arena.transient_bytes = end - plan.arena.resident_bytes;
}

/// States the byte counts that the plan has now, counted slot by slot and task by task.
pub(crate) fn recount(plan: &mut StepPlan) {
    let touched: Vec<Vec<SlotId>> = plan
        .tasks
        .iter()
        .map(|task| task.op.accesses().into_iter().map(|(slot, _)| slot).collect())
        .collect();
    let live = |position: usize| -> usize {
        let is_alive = |slot: SlotId| {
            touched[..=position].iter().flatten().any(|other| *other == slot)
                && touched[position..].iter().flatten().any(|other| *other == slot)
        };
        let alive = plan.transient().filter(|slot| is_alive(*slot));
        alive.map(|slot| plan.arena.region(slot).bytes.next_multiple_of(ALIGNMENT)).sum()
    };
    let (bytes, peak) = (0..plan.tasks.len()).map(|position| (live(position), position)).max().unwrap();
    plan.bounds.live_bytes = bytes;
    plan.bounds.live_weight_bytes = 0;
    plan.bounds.live_peak = TaskId::at(peak);
    plan.bounds.resident_bytes = plan.arena.resident_bytes;
    plan.bounds.transient_bytes = plan.arena.transient_bytes;
    plan.bounds.wire_bytes = plan.tasks.iter().map(|task| task.wire_bytes).sum();
}
