//! Edits that add, drop and move tasks, with everything that a plan says about itself kept true.
//!
//! Law: whoever waited for a task still waits for it, wherever it went; places on communicators and byte
//! counts are stated anew. No fence is added, so that what an edit of T leaves unordered is for the verifier
//! to find.

use warpweft_base::id::{EventId, TaskId};
use warpweft_plan::plan::StepPlan;
use warpweft_testing::plan_books::renumber_collectives;

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

/// A copy of `task` at place `at` after it. It waits for what the task waits for and signals nothing.
pub(crate) fn duplicate(plan: &mut StepPlan, task: usize, at: usize) {
    let mut copy = plan.tasks[task].clone();
    copy.signals = None;
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
