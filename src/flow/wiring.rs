//! Wiring: the plan's dependences as routes for messages.
//!
//! Law: computed once per plan, from the plan alone. A task is ready when the number of rights that the
//! wiring says has come in and its lane's turn has reached it. It then grants the rights the wiring lists and
//! passes the turn on.

use crate::id::{LaneId, SlotId, TaskId};
use crate::model::Access;
use crate::plan::{Edge, StepPlan};

/// The routes of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskWiring {
    /// Rights that must come in.
    pub incoming: u32,
    /// Rights to grant: a range of [`Wiring::grants`].
    pub grants: std::ops::Range<usize>,
    /// The task that gets the lane's turn next.
    pub next: Option<TaskId>,
    /// Slots the task writes.
    pub writes: Vec<SlotId>,
}

/// All routes of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Per task, in issue order.
    pub tasks: Vec<TaskWiring>,
    /// Dependences ordered by the task that grants them.
    pub grants: Vec<Edge>,
    /// The first task of every lane that has one.
    pub first: Vec<TaskId>,
}

impl Wiring {
    /// The routes of `plan`.
    #[must_use]
    pub fn new(plan: &StepPlan) -> Self {
        let mut grants = plan.edges();
        grants.sort_unstable();
        let mut tasks = vec![TaskWiring::default(); plan.tasks.len()];
        for (position, edge) in grants.iter().enumerate() {
            tasks[edge.to.index()].incoming += 1;
            let from = &mut tasks[edge.from.index()].grants;
            *from = if from.start == from.end { position..position + 1 } else { from.start..position + 1 };
        }
        let mut last: Vec<Option<TaskId>> = vec![None; plan.lanes.len()];
        let mut first = Vec::new();
        for (id, task) in plan.entries() {
            let lane: LaneId = task.lane;
            match last[lane.index()].replace(id) {
                Some(before) => tasks[before.index()].next = Some(id),
                None => first.push(id),
            }
            let written = task.op.accesses().into_iter().filter(|(_, access): &(_, Access)| access.writes());
            tasks[id.index()].writes = written.map(|(slot, _)| slot).collect();
        }
        Self { tasks, grants, first }
    }
}
