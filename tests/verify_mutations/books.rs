//! Tasks added, dropped and moved, with everything that a plan says about itself kept true.
//!
//! Law: whoever waited for a task still waits for it, wherever it went; places on communicators and byte counts are stated anew. No
//! fence is added, so that what an edit of T leaves unordered is for the verifier to find.

use warpweft::id::{CommSeq, EventId, TaskId};
use warpweft::layout::{ALIGNMENT, Residency};
use warpweft::plan::StepPlan;

pub(crate) fn signal(plan: &mut StepPlan, task: usize) {
    if plan.tasks[task].signals.is_none() {
        plan.tasks[task].signals = Some(EventId::at(plan.events));
        plan.events += 1;
    }
}

pub(crate) fn drop_task(plan: &mut StepPlan, dropped: usize) {
    plan.tasks.remove(dropped);
    let moved = |task: TaskId| match task.index() {
        at if at == dropped => None,
        at => Some(TaskId::at(at - usize::from(at > dropped))),
    };
    for task in &mut plan.tasks {
        task.waits = task.waits.iter().filter_map(|wait| moved(*wait)).collect();
        task.release = task.release.and_then(moved);
    }
    renumber_collectives(plan);
}

/// A copy of `task` at place `at` behind it. It waits for what the task waits for and signals nothing.
pub(crate) fn duplicate(plan: &mut StepPlan, task: usize, at: usize) {
    let copy = warpweft::plan::Task { signals: None, ..plan.tasks[task].clone() };
    plan.tasks.insert(at, copy);
    let moved = |task: TaskId| TaskId::at(task.index() + usize::from(task.index() >= at));
    for task in &mut plan.tasks {
        task.waits.iter_mut().for_each(|wait| *wait = moved(*wait));
        task.release = task.release.map(moved);
    }
    renumber_collectives(plan);
}

/// Takes the task from one place in T to another; who waits for whom stays.
pub(crate) fn move_task(plan: &mut StepPlan, from: usize, to: usize) {
    let mut places: Vec<usize> = (0..plan.tasks.len()).collect();
    let place = places.remove(from);
    places.insert(to, place);
    let task = plan.tasks.remove(from);
    plan.tasks.insert(to, task);
    let moved = |task: TaskId| TaskId::at(places.iter().position(|old| *old == task.index()).unwrap());
    for task in &mut plan.tasks {
        task.waits.iter_mut().for_each(|wait| *wait = moved(*wait));
        task.release = task.release.map(moved);
    }
    renumber_collectives(plan);
}

pub(crate) fn renumber_collectives(plan: &mut StepPlan) {
    let mut next = vec![0; plan.lanes.len()];
    for task in &mut plan.tasks {
        if let Some((_, sequence)) = &mut task.collective {
            *sequence = CommSeq::new(next[task.lane.index()]);
            next[task.lane.index()] += 1;
        }
    }
}

/// Gives every transient slot bytes of its own.
pub(crate) fn spread(plan: &mut StepPlan) {
    let mut end = plan.arena.resident_bytes;
    for slot in plan.arena.slots.iter_mut().filter(|slot| slot.residency == Residency::Transient) {
        slot.region.offset = end;
        end += slot.region.bytes.next_multiple_of(ALIGNMENT);
    }
    plan.arena.transient_bytes = end - plan.arena.resident_bytes;
}

/// States the byte counts anew: transient bytes between first and last access, and where their sum is largest.
pub(crate) fn recount(plan: &mut StepPlan) {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.arena.slots.len()];
    for (position, task) in plan.tasks.iter().enumerate() {
        for (slot, _) in task.op.accesses() {
            let life = lives[slot.index()].get_or_insert((position, position));
            life.1 = position;
        }
    }
    let mut alive = vec![0usize; plan.tasks.len()];
    for (slot, life) in plan.arena.slots.iter().zip(lives) {
        if let (Residency::Transient, Some((first, last))) = (slot.residency, life) {
            let bytes = slot.region.bytes.next_multiple_of(ALIGNMENT);
            alive[first..=last].iter_mut().for_each(|alive| *alive += bytes);
        }
    }
    let (bytes, peak) =
        alive.iter().enumerate().map(|(position, bytes)| (*bytes, position)).max().unwrap_or_default();
    plan.bounds.live_bytes = bytes;
    plan.bounds.live_weight_bytes = 0;
    plan.bounds.live_peak = TaskId::at(peak);
    plan.bounds.resident_bytes = plan.arena.resident_bytes;
    plan.bounds.transient_bytes = plan.arena.transient_bytes;
    plan.bounds.wire_bytes = plan.tasks.iter().map(|task| task.wire_bytes).sum();
}
