//! By how much every gather is ready before it is needed.
//!
//! Law: the slack of a gather is the time from its end to the moment in which its first reader could begin without it: when
//! the reader's lane is free and all else it waits for is over. Below zero, the reader is held up by so much.

use super::Span;
use crate::id::{LaneId, TaskId};
use crate::op::Op;
use crate::plan::StepPlan;

/// One gather, and the task that reads its planes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// The gather.
    pub gather: TaskId,
    /// Its first reader: a call, a transposition, a dequantization.
    pub reader: TaskId,
    /// Nanoseconds between the two that are to spare; below 0 the reader is late by so much.
    pub nanoseconds: i64,
}

pub(super) fn slacks(plan: &StepPlan, spans: &[Span]) -> Vec<Slack> {
    let mut readers: Vec<Option<usize>> = vec![None; plan.arena.slots.len()];
    let mut before: Vec<Option<usize>> = vec![None; plan.tasks.len()];
    let mut last: Vec<Option<usize>> = vec![None; plan.lanes.len()];
    for (position, task) in plan.tasks.iter().enumerate() {
        before[position] = last[task.lane.index()].replace(position);
        for (slot, access) in task.op.accesses() {
            if access.reads() {
                readers[slot.index()].get_or_insert(position);
            }
        }
    }
    let ready_without = |reader: usize, lane: LaneId| {
        let others = plan.tasks[reader].waits.iter().map(|wait| wait.index());
        let others = others.filter(|wait| plan.tasks[*wait].lane != lane).chain(before[reader]);
        others.map(|other| spans[other].end).max().unwrap_or(0)
    };
    let gathers = plan.entries().filter(|(_, task)| matches!(task.op, Op::AllGather { .. }));
    gathers
        .filter_map(|(gather, task)| {
            let written = task.op.accesses().into_iter().filter(|(_, access)| access.writes());
            let reader = written.filter_map(|(slot, _)| readers[slot.index()]).min()?;
            let ready = ready_without(reader, task.lane);
            let nanoseconds = ready.cast_signed().saturating_sub(spans[gather.index()].end.cast_signed());
            Some(Slack { gather, reader: TaskId::at(reader), nanoseconds })
        })
        .collect()
}
