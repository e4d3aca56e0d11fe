//! Wiring: the plan's dependences as routes for messages.
//!
//! Law: computed once per plan, from the plan alone. A task is ready when the number of rights that the
//! wiring says has come in and its lane's turn has reached it. It then grants the rights the wiring lists and
//! passes the turn on.
//!
//! What issuing needs of a task and of those it waits for lies here side by side, because between two tasks calls
//! of a driver evict what is cached.

use std::ops::Range;

use warpweft_base::id::{EventId, LaneId, SlotId, TaskId};
use warpweft_plan::model::Access;
use warpweft_plan::plan::{Edge, StepPlan, Task};

/// The routes of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskWiring {
    /// Its lane.
    pub lane: LaneId,
    /// Rights that must come in.
    pub incoming: u32,
    /// Rights to grant: a range of [`Wiring::grants`].
    pub grants: Range<usize>,
    /// The task that gets the lane's turn next.
    pub next: Option<TaskId>,
    /// Slots the task writes: a range of [`Wiring::writes`].
    pub writes: Range<usize>,
    /// What it waits for on other lanes: a range of [`Wiring::fences`].
    pub fences: Range<usize>,
    /// What others wait for.
    pub signals: Option<EventId>,
}

/// A wait of one lane for a task of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The task that is waited for.
    pub task: TaskId,
    /// Its lane.
    pub lane: LaneId,
    /// What it signals.
    pub event: Option<EventId>,
}

/// All routes of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Per task, in issue order.
    pub tasks: Vec<TaskWiring>,
    /// Dependences ordered by the task that grants them.
    pub grants: Vec<Edge>,
    /// Slots that tasks write, in issue order.
    pub writes: Vec<SlotId>,
    /// Fences, in issue order.
    pub fences: Vec<Fence>,
    /// The first task of every lane that has one.
    pub first: Vec<TaskId>,
}

impl Wiring {
    /// The routes of `plan`.
    #[must_use]
    pub fn new(plan: &StepPlan) -> Self {
        let mut grants = plan.edges();
        grants.sort_unstable();
        let (mut writes, mut fences) = (Vec::new(), Vec::new());
        let mut tasks: Vec<TaskWiring> =
            plan.tasks.iter().map(|task| wired(plan, task, &mut writes, &mut fences)).collect();
        for (position, edge) in grants.iter().enumerate() {
            tasks[edge.to.index()].incoming += 1;
            let from = &mut tasks[edge.from.index()].grants;
            *from = if from.start == from.end { position..position + 1 } else { from.start..position + 1 };
        }
        let mut last: Vec<Option<TaskId>> = vec![None; plan.lanes.len()];
        let mut first = Vec::new();
        for (id, task) in plan.entries() {
            match last[task.lane.index()].replace(id) {
                Some(before) => tasks[before.index()].next = Some(id),
                None => first.push(id),
            }
        }
        Self { tasks, grants, writes, fences, first }
    }
}

/// What a task says of itself; its writes and fences go after those of the tasks before it.
fn wired(plan: &StepPlan, task: &Task, writes: &mut Vec<SlotId>, fences: &mut Vec<Fence>) -> TaskWiring {
    let (first_write, first_fence) = (writes.len(), fences.len());
    let written = task.op.accesses().into_iter().filter(|(_, access): &(_, Access)| access.writes());
    writes.extend(written.map(|(slot, _)| slot));
    fences.extend(task.waits.iter().map(|before| {
        let Task { lane, signals, .. } = *plan.task(*before);
        Fence { task: *before, lane, event: signals }
    }));
    TaskWiring {
        lane: task.lane,
        incoming: 0,
        grants: 0..0,
        next: None,
        writes: first_write..writes.len(),
        fences: first_fence..fences.len(),
        signals: task.signals,
    }
}
