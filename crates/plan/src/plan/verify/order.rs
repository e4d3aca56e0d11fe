//! PL-5: happens-before, by vector clocks, and the checks that make it an order.
//!
//! Law: one task happens before another if lane order and [`Task::waits`](super::Task::waits) say
//! so, and for no other reason. A lane runs its tasks in T order; a wait covers the task it names
//! and everything before it on that task's lane. Because every wait points back in T, the first
//! unfinished task of T can always run, on every rank alike: a verified plan cannot deadlock.

use super::{Verdict, VerifyError};
use crate::layout::LaneKind;
use crate::op::Op;
use crate::plan::StepPlan;
use warpweft_base::id::{LaneId, TaskId};

/// Happens-before of a plan whose waits all point back.
pub(super) struct Order {
    lanes: usize,
    lane_of: Vec<usize>,
    /// For every task, one entry per lane: 1 + the last task of that lane known to be over when
    /// the task ends, 0 for none. Row-major.
    clocks: Vec<u32>,
}

impl Order {
    /// Is `first` over before `second` begins?
    pub(super) fn before(&self, first: TaskId, second: TaskId) -> bool {
        first != second && self.clock(second, self.lane_of[first.index()]) > first.number()
    }

    /// The last task on the lane of `other` that is over before `task` begins.
    pub(super) fn last_before(&self, task: TaskId, other: TaskId) -> Option<TaskId> {
        self.clock(task, self.lane_of[other.index()])
            .checked_sub(1)
            .map(TaskId::new)
            .filter(|last| *last != task)
    }

    /// The position of the lane that runs `task`.
    pub(super) fn lane_of(&self, task: TaskId) -> usize {
        self.lane_of[task.index()]
    }

    fn clock(&self, task: TaskId, lane: usize) -> u32 {
        self.clocks[task.index() * self.lanes + lane]
    }
}

/// Checks lanes, waits, events and communicators, and returns the order they make.
pub(super) fn check(plan: &StepPlan) -> Verdict<Order> {
    check_lanes(plan)?;
    check_waits(plan)?;
    check_communicators(plan)?;
    let order = clocks(plan);
    check_releases(plan, &order)?;
    Ok(order)
}

fn clocks(plan: &StepPlan) -> Order {
    let lanes = plan.lanes.len();
    let mut order = Order {
        lanes,
        lane_of: plan.tasks.iter().map(|task| task.lane.index()).collect(),
        clocks: vec![0; plan.tasks.len() * lanes],
    };
    let mut last_on_lane: Vec<Option<usize>> = vec![None; lanes];
    for (position, task) in plan.tasks.iter().enumerate() {
        let lane = task.lane.index();
        let (earlier, own) = order.clocks.split_at_mut(position * lanes);
        let own = &mut own[..lanes];
        for before in task.waits.iter().map(|wait| wait.index()).chain(last_on_lane[lane]) {
            for (mine, theirs) in own.iter_mut().zip(&earlier[before * lanes..]) {
                *mine = (*mine).max(*theirs);
            }
        }
        own[lane] = TaskId::at(position).number() + 1;
        last_on_lane[lane] = Some(position);
    }
    order
}

fn check_lanes(plan: &StepPlan) -> Verdict<()> {
    for (position, lane) in plan.lanes.iter().enumerate() {
        let twin = plan.lanes[..position].iter().find(|other| other.kind == lane.kind);
        let problem = match twin {
            Some(twin) => format!("exists twice, as {} and {}", twin.id, lane.id),
            None if lane.id != LaneId::at(position) => format!("is numbered {} at place {position}", lane.id),
            None => continue,
        };
        return Err(Box::new(VerifyError::Order {
            task: format!("the {} lane", lane.kind),
            problem,
            remedy: "number lanes by their place, one for each kind and communicator".into(),
        }));
    }
    for (id, task) in plan.entries() {
        let kind = plan.lanes[task.lane.index()].kind;
        let fits = match (&task.op, kind) {
            (op, kind) if op.runs_user_code() => kind == LaneKind::Compute,
            (Op::Snapshot(_), kind) => kind == LaneKind::Snapshot,
            (_, LaneKind::Snapshot) => false,
            (op, LaneKind::Communicator(_)) => op.is_collective(),
            (op, LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum) => !op.is_collective(),
        };
        if !fits {
            return refuse(
                plan,
                id,
                format!("runs on the {kind} lane"),
                "closures and the custom optimizer run on the compute lane alone, collectives and only collectives on \
                 a communicator's, and so do snapshots on theirs",
            );
        }
    }
    Ok(())
}

fn check_waits(plan: &StepPlan) -> Verdict<()> {
    let mut signalled_by: Vec<Option<TaskId>> = vec![None; plan.events];
    for (id, task) in plan.entries() {
        if let Some(event) = task.signals
            && let Some(other) = signalled_by[event.index()].replace(id)
        {
            return refuse(
                plan,
                id,
                format!("signals {event}, which {} signals too", plan.describe(other)),
                "give every signalling task an event of its own, or a waiter may pass too early",
            );
        }
        for wait in &task.waits {
            if *wait >= id {
                return refuse(
                    plan,
                    id,
                    format!(
                        "waits for {}, which does not stand before it in the issue order",
                        plan.describe(*wait)
                    ),
                    "a wait must point back in the issue order, or both wait for ever",
                );
            }
            if plan.task(*wait).signals.is_none() {
                return refuse(
                    plan,
                    id,
                    format!("waits for {}, which signals no event", plan.describe(*wait)),
                    "a wait on an event nobody records passes at once; let the earlier task signal",
                );
            }
        }
    }
    Ok(())
}

fn check_communicators(plan: &StepPlan) -> Verdict<()> {
    let mut next = vec![0u32; plan.lanes.len()];
    for (id, task) in plan.entries() {
        let lane = task.lane.index();
        let expected = match plan.lanes[lane].kind {
            LaneKind::Communicator(comm) => Some((comm, next[lane])),
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => None,
        };
        let found = task.collective.map(|(comm, sequence)| (comm, sequence.number()));
        if found != expected {
            let say = |place: Option<(warpweft_base::id::CommId, u32)>| {
                place
                    .map_or("no collective".into(), |(comm, number)| format!("collective {number} of {comm}"))
            };
            return refuse(
                plan,
                id,
                format!(
                    "is numbered as {}, but its place in the issue order makes it {}",
                    say(found),
                    say(expected)
                ),
                "number the collectives of each communicator 0, 1, 2, … in issue order, or ranks would meet in different ones",
            );
        }
        next[lane] += u32::from(expected.is_some());
    }
    Ok(())
}

fn check_releases(plan: &StepPlan, order: &Order) -> Verdict<()> {
    for (id, task) in plan.entries() {
        if let Some(release) = task.release.filter(|release| !order.before(*release, id)) {
            return refuse(
                plan,
                id,
                format!("may begin before its release, {}, is over", plan.describe(release)),
                "let it wait for that task (add a fence on the release), or the prefetch runs further ahead, and takes more memory, than its policy allows",
            );
        }
    }
    Ok(())
}

fn refuse<T>(plan: &StepPlan, task: TaskId, problem: String, remedy: &str) -> Verdict<T> {
    Err(Box::new(VerifyError::Order { task: plan.describe(task), problem, remedy: remedy.into() }))
}
