//! Slack: how long every gather is ready before it is needed.
//!
//! Law: the slack of a gather is the time from the moment in which its planes are ready to that in which the
//! first call that reads them could begin without them: when the call's lane is free and all else it waits
//! for is over. Planes that another lane assembles, transposes or dequantizes first are ready when that is
//! done. Below zero, the call is held up by so much.

use super::Span;
use crate::op::Op;
use crate::plan::StepPlan;
use warpweft_base::id::{SlotId, TaskId};

/// One gather, and the task of the compute lane that needs it first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// The gather.
    pub gather: TaskId,
    /// What needs it first on the compute lane: a call, or what makes planes whole or dequantizes them right
    /// before one.
    pub reader: TaskId,
    /// Nanoseconds between the two that are to spare; below 0 the reader is late by so much.
    pub nanoseconds: i64,
}

pub(super) fn slacks(plan: &StepPlan, spans: &[Span]) -> Vec<Slack> {
    let order = Order::of(plan);
    let gathers = plan.entries().filter(|(_, task)| task.op.is_gather());
    gathers
        .filter_map(|(gather, _)| {
            let mut ready = gather.index();
            let mut reader = order.next_reader(plan, ready)?;
            while plan.tasks[reader].lane != plan.compute_lane() {
                ready = reader;
                reader = order.next_reader(plan, ready)?;
            }
            let without = order.before[reader]
                .into_iter()
                .chain(plan.tasks[reader].waits.iter().map(|wait| wait.index()))
                .filter(|other| plan.tasks[*other].lane != plan.tasks[ready].lane);
            let could = without.map(|other| spans[other].end).max().unwrap_or(0);
            let nanoseconds = could.cast_signed().saturating_sub(spans[ready].end.cast_signed());
            Some(Slack { gather, reader: TaskId::at(reader), nanoseconds })
        })
        .collect()
}

/// Who comes before whom.
struct Order {
    /// Per slot, its readers in T.
    readers: Vec<Vec<usize>>,
    /// Per task, the one before it on its lane.
    before: Vec<Option<usize>>,
}

impl Order {
    fn of(plan: &StepPlan) -> Self {
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); plan.arena.slots.len()];
        let mut before: Vec<Option<usize>> = vec![None; plan.tasks.len()];
        let mut last: Vec<Option<usize>> = vec![None; plan.lanes.len()];
        for (position, task) in plan.tasks.iter().enumerate() {
            before[position] = last[task.lane.index()].replace(position);
            for (slot, access) in task.op.accesses() {
                // A chunk after others reads what they brought, and is no reader of planes.
                if access.reads() && !matches!(task.op, Op::GatherChunk(_)) {
                    readers[slot.index()].push(position);
                }
            }
        }
        Self { readers, before }
    }

    /// The first task after another that reads what that writes.
    fn next_reader(&self, plan: &StepPlan, task: usize) -> Option<usize> {
        let written = plan.tasks[task].op.accesses().into_iter().filter(|(_, access)| access.writes());
        let next = |slot: SlotId| self.readers[slot.index()].iter().copied().find(|reader| *reader > task);
        written.filter_map(|(slot, _)| next(slot)).min()
    }
}
