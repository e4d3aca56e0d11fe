//! Begin and end of every task in a forecast.
//!
//! Law: a task begins when the host has issued it, its lane is free and the tasks it waits for are over; it
//! takes its price and what other lanes take from it, charged in the order in which tasks begin. That is the machine
//! of the simulator on one clock, without delays and dynamic calls.

use std::collections::VecDeque;

use crate::cluster::{Charges, Reach};
use crate::layout::{Lane, LaneKind};
use crate::op::Op;
use crate::plan::{Costs, StepPlan};
use warpweft_base::id::{LaneId, TaskId};

/// One task, as far as time is concerned.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Timed<'a> {
    pub(in super::super) lane: LaneId,
    pub(in super::super) nanoseconds: f64,
    /// The links it takes, if it is a collective.
    pub(in super::super) reach: Option<Reach>,
    pub(in super::super) waits: &'a [TaskId],
}

/// Beginning and end of a task, nanoseconds from the beginning of the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// When it begins.
    pub begin: u64,
    /// When it is over.
    pub end: u64,
}

/// The spans of tasks in issue order, on these lanes. Of tasks that begin at one time the first in issue order is
/// served first.
pub(in super::super) fn spans(tasks: &[Timed<'_>], lanes: &[Lane], costs: &Costs) -> Vec<Span> {
    let mut charges = Charges::new(costs.contention());
    lanes.iter().for_each(|lane| charges.open(*lane));
    let (launch, host) = costs.host();
    let mut queues = vec![VecDeque::new(); lanes.len()];
    for (number, task) in tasks.iter().enumerate() {
        queues[task.lane.index()].push_back(number);
    }
    let mut free = vec![0u64; lanes.len()];
    // When the first task of a lane begins, once what it waits for is over.
    let mut begins: Vec<Option<u64>> = vec![None; lanes.len()];
    let mut spans: Vec<Option<Span>> = vec![None; tasks.len()];
    loop {
        for ((begin, queue), free) in begins.iter_mut().zip(&queues).zip(&free) {
            if let (None, Some(number)) = (*begin, queue.front().copied()) {
                let issued = host.saturating_add(launch.saturating_mul(number as u64 + 1));
                *begin = over(&tasks[number], number, &spans).map(|over| over.max(issued).max(*free));
            }
        }
        let first =
            begins.iter().zip(&queues).filter_map(|(begin, queue)| Some(((*begin)?, *queue.front()?)));
        let Some((begin, number)) = first.min() else { break };
        let task = &tasks[number];
        let alone = (begin, task.nanoseconds);
        let end = if let Some(reach) = task.reach {
            charges.carry(task.lane, reach, alone)
        } else {
            let held_up = charges.held_up(task.lane, alone);
            let end = begin.saturating_add((task.nanoseconds + held_up).round() as u64);
            charges.note(task.lane, (begin, end));
            end
        };
        let lane = task.lane.index();
        queues[lane].pop_front();
        (begins[lane], free[lane]) = (None, end);
        spans[number] = Some(Span { begin, end });
    }
    spans.into_iter().map(Option::unwrap_or_default).collect()
}

/// When all that the task of this number waits for is over, as far as that is known. A wait for what comes later, as
/// only a plan made by hand has it, adds nothing: the verifier refuses such a plan.
fn over(task: &Timed<'_>, number: usize, spans: &[Option<Span>]) -> Option<u64> {
    let mut waits = task.waits.iter().map(|wait| wait.index()).filter(|wait| *wait < number);
    waits.try_fold(0, |latest, wait| Some(latest.max(spans[wait]?.end)))
}

/// Time in which lanes of the wanted kind run something. Each is counted by itself.
pub(super) fn busy(plan: &StepPlan, spans: &[Span], wanted: impl Fn(LaneKind) -> bool) -> u64 {
    let of_kind = |lane: LaneId| plan.lanes.get(lane.index()).is_some_and(|lane| wanted(lane.kind));
    let own = plan.tasks.iter().zip(spans).filter(|(task, _)| of_kind(task.lane));
    own.fold(0, |sum, (_, span)| sum.saturating_add(span.end - span.begin))
}

/// Time in which a communicator runs something that is wanted, and the compute lane nothing.
pub(super) fn exposed(plan: &StepPlan, spans: &[Span], wanted: impl Fn(&Op) -> bool) -> u64 {
    let mut changes: Vec<(u64, i32, i32)> = Vec::new();
    for (task, span) in plan.tasks.iter().zip(spans).filter(|(_, span)| span.end > span.begin) {
        let (compute, communicator) = match plan.lanes.get(task.lane.index()).map(|lane| lane.kind) {
            Some(LaneKind::Compute) => (1, 0),
            Some(LaneKind::Communicator(_)) if wanted(&task.op) => (0, 1),
            _ => continue,
        };
        changes.push((span.begin, compute, communicator));
        changes.push((span.end, -compute, -communicator));
    }
    changes.sort_unstable();
    let (mut computing, mut communicating, mut since, mut exposed) = (0, 0, 0, 0u64);
    for (time, compute, communicator) in changes {
        if computing == 0 && communicating > 0 {
            exposed += time - since;
        }
        (computing, communicating, since) = (computing + compute, communicating + communicator, time);
    }
    exposed
}
