//! Happens-before by brute force: all pairs, from lanes and fences alone.
//!
//! Law: a plan's lanes are queues, and a fence is an event that one task records and another waits for. What
//! must be over when a task begins is found by following both, without clocks, without a sweep over bytes and
//! without trusting that fences point back in T. A fence on a task that records nothing, or that shares its
//! event with another task, orders nothing.

use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::layout::Region;
use warpweft_plan::plan::StepPlan;

/// Which tasks are over when which tasks begin.
pub(crate) struct Before {
    pairs: Vec<Vec<bool>>,
}

impl Before {
    pub(crate) fn of(plan: &StepPlan) -> Self {
        let mut pairs = direct(plan);
        close(&mut pairs);
        Self { pairs }
    }

    /// Is `first` over when `second` begins?
    pub(crate) fn is(&self, first: usize, second: usize) -> bool {
        self.pairs[second][first]
    }

    /// Does some task wait for itself? Then no rank gets past it.
    pub(crate) fn stands_still(&self) -> bool {
        (0..self.pairs.len()).any(|task| self.is(task, task))
    }

    /// Two tasks that nothing orders and that touch a common byte, of which one writes; or one task that does
    /// so to itself.
    pub(crate) fn conflict(&self, plan: &StepPlan) -> Option<(usize, usize)> {
        let touched: Vec<Vec<(Region, bool)>> = plan
            .tasks
            .iter()
            .map(|task| {
                let touch = |(slot, access): (_, warpweft_plan::model::Access)| {
                    (plan.arena.region(slot), access.writes())
                };
                task.op.accesses().into_iter().map(touch).collect()
            })
            .collect();
        for second in 0..touched.len() {
            for (number, (one, writes)) in touched[second].iter().enumerate() {
                if touched[second][..number]
                    .iter()
                    .any(|(other, also)| (*writes || *also) && one.overlaps(*other))
                {
                    return Some((second, second));
                }
            }
            for first in 0..second {
                let meets = |(one, writes): &(Region, bool)| {
                    touched[first].iter().any(|(other, also)| (*writes || *also) && one.overlaps(*other))
                };
                if !self.is(first, second) && !self.is(second, first) && touched[second].iter().any(meets) {
                    return Some((first, second));
                }
            }
        }
        None
    }

    /// Nothing has run yet.
    pub(crate) fn progress(&self) -> Progress {
        let left: Vec<usize> =
            self.pairs.iter().map(|row| row.iter().filter(|before| **before).count()).collect();
        let ready = (0..left.len()).filter(|task| left[*task] == 0).collect();
        Progress { left, ready }
    }

    /// An order in which the tasks may run: of those that may, the first in T.
    pub(crate) fn order(&self) -> Vec<usize> {
        let (mut progress, mut order) = (self.progress(), Vec::new());
        while let Some(task) = progress.ready().iter().min().copied() {
            progress.end(self, task);
            order.push(task);
        }
        order
    }
}

/// How far a rank has come.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    /// Per task, how many that must be over before it are not.
    left: Vec<usize>,
    ready: Vec<usize>,
}

impl Progress {
    /// Tasks that may run now.
    pub(crate) fn ready(&self) -> &[usize] {
        &self.ready
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ready.is_empty()
    }

    /// One of the ready tasks has run.
    pub(crate) fn end(&mut self, before: &Before, task: usize) {
        self.ready.retain(|other| *other != task);
        for (later, _) in before.pairs.iter().enumerate().filter(|(_, row)| row[task]) {
            self.left[later] -= 1;
            if self.left[later] == 0 {
                self.ready.push(later);
            }
        }
    }
}

/// For every task, the one before it on its lane and those it has a fence on.
pub(crate) fn direct(plan: &StepPlan) -> Vec<Vec<bool>> {
    let count = plan.tasks.len();
    let mut pairs = vec![vec![false; count]; count];
    let mut last_on_lane: Vec<(LaneId, usize)> = Vec::new();
    for (later, task) in plan.tasks.iter().enumerate() {
        match last_on_lane.iter_mut().find(|(lane, _)| *lane == task.lane) {
            Some((_, last)) => pairs[later][std::mem::replace(last, later)] = true,
            None => last_on_lane.push((task.lane, later)),
        }
        for wait in task.waits.iter().filter(|wait| is_recorded(plan, **wait)) {
            pairs[later][wait.index()] = true;
        }
    }
    pairs
}

/// Whoever is before a task's predecessors is before the task (Warshall, 1962).
pub(crate) fn close(pairs: &mut [Vec<bool>]) {
    for middle in 0..pairs.len() {
        let reached = pairs[middle].clone();
        for row in pairs.iter_mut().filter(|row| row[middle]) {
            row.iter_mut().zip(&reached).for_each(|(mine, theirs)| *mine |= theirs);
        }
    }
}

/// Does the end of `task` let through exactly those who wait for it?
fn is_recorded(plan: &StepPlan, task: TaskId) -> bool {
    let event = plan.task(task).signals;
    event.is_some() && plan.tasks.iter().filter(|other| other.signals == event).count() == 1
}
