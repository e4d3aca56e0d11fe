//! Bookkeeping of a plan, recomputed after an edit.
//!
//! Law: nothing here changes what a plan does, but that [`serialize`] orders it by its tasks' places in T. A slot
//! that [`twin`] adds is used by no task.
//! Counted slot by slot and task by task, without the planner.

use warpweft_base::id::{CommSeq, EventId, SlotId, TaskId};
use warpweft_plan::layout::{ALIGNMENT, Content, Region, Residency, Slot};
use warpweft_plan::op::{CollectiveCall, Op};
use warpweft_plan::plan::StepPlan;

/// Every task waits for the one before it in T; communicators count anew; releases are forgotten.
pub fn serialize(plan: &mut StepPlan) {
    for (position, task) in plan.tasks.iter_mut().enumerate() {
        task.waits = position.checked_sub(1).map(TaskId::at).into_iter().collect();
        task.signals = Some(EventId::at(position));
        task.release = None;
    }
    plan.events = plan.tasks.len();
    renumber_collectives(plan);
}

/// The collectives of each lane count 0, 1, 2, … in T.
pub fn renumber_collectives(plan: &mut StepPlan) {
    let mut next = vec![0; plan.lanes.len()];
    for task in &mut plan.tasks {
        if let Some((_, sequence)) = &mut task.collective {
            *sequence = CommSeq::new(next[task.lane.index()]);
            next[task.lane.index()] += 1;
        }
    }
}

/// States anew what a collective call receives: of every peer as much as it gives this rank.
pub fn restate_what_is_received(plan: &mut StepPlan, task: usize) {
    let Op::CollectiveCall(CollectiveCall { kind, group, from, counts, .. }) = plan.tasks[task].op else {
        return;
    };
    let ranks = plan.weights.mesh.size(group) as usize;
    let given = |slot: SlotId| match plan.arena.slot(slot).content {
        Content::Buffer(buffer) | Content::Staging(buffer, _) => plan.buffers[buffer.index()].bytes(),
        _ => plan.arena.region(slot).bytes,
    };
    let brought = counts.filter(|counts| !counts.declared.known).map_or(0, |counts| given(counts.given));
    let given = given(from) + brought;
    let to_each = if kind.has_parts() { given / ranks } else { given };
    plan.tasks[task].wire_bytes = to_each * (ranks - 1);
}

/// Gives every transient slot bytes of its own, so that no two contents meet.
pub fn spread(plan: &mut StepPlan) {
    let mut end = plan.arena.resident_bytes;
    for slot in plan.arena.slots.iter_mut().filter(|slot| slot.residency == Residency::Transient) {
        slot.region.offset = end;
        end += slot.region.bytes.next_multiple_of(ALIGNMENT);
    }
    plan.arena.transient_bytes = end - plan.arena.resident_bytes;
}

/// A transient slot for the content of `slot`, in bytes of its own.
pub fn twin(plan: &mut StepPlan, slot: SlotId) -> SlotId {
    let Slot { name, content, region, .. } = plan.arena.slot(slot).clone();
    let region = Region { offset: plan.arena.bytes(), ..region };
    plan.arena.transient_bytes += region.bytes.next_multiple_of(ALIGNMENT);
    let name = format!("{name} elsewhere");
    plan.arena.slots.push(Slot { name, content, residency: Residency::Transient, region });
    SlotId::at(plan.arena.slots.len() - 1)
}

/// States the byte counts anew: transient bytes between first and last access, and where their sum is largest.
pub fn recount(plan: &mut StepPlan) {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.arena.slots.len()];
    for (position, task) in plan.tasks.iter().enumerate() {
        for (slot, _) in task.op.accesses() {
            let life = lives[slot.index()].get_or_insert((position, position));
            life.1 = position;
        }
    }
    let mut alive = vec![(0usize, 0usize); plan.tasks.len()];
    for (slot, life) in plan.arena.slots.iter().zip(lives) {
        if let (Residency::Transient, Some((first, last))) = (slot.residency, life) {
            let bytes = slot.region.bytes.next_multiple_of(ALIGNMENT);
            let weights = if is_of_a_weight(slot.content) { bytes } else { 0 };
            alive[first..=last].iter_mut().for_each(|alive| *alive = (alive.0 + bytes, alive.1 + weights));
        }
    }
    let fullest = alive.iter().enumerate().max_by_key(|(_, bytes)| bytes.0);
    let (peak, (bytes, weights)) = fullest.map_or((0, (0, 0)), |(position, bytes)| (position, *bytes));
    plan.bounds.live_bytes = bytes;
    plan.bounds.live_weight_bytes = weights;
    plan.bounds.live_peak = TaskId::at(peak);
    plan.bounds.resident_bytes = plan.arena.resident_bytes;
    plan.bounds.transient_bytes = plan.arena.transient_bytes;
    plan.bounds.wire_bytes = plan.tasks.iter().map(|task| task.wire_bytes).sum();
}

/// Planes, dense values, gradients and matrices, by the names that their contents print.
fn is_of_a_weight(content: Content) -> bool {
    let of_a_weight = [
        "Published",
        "Gathered",
        "Transposed",
        "Dense",
        "Gradient",
        "WireGradient",
        "QuantizedGradient",
        "ReceivedGradient",
        "PartialGradient",
        "ReceivedPartial",
        "ReducedGradient",
        "SummedGradient",
        "BlockGrad",
        "Round",
    ];
    let name = format!("{content:?}");
    of_a_weight.contains(&name.split('(').next().unwrap_or_default())
}
