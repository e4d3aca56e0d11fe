//! What lanes got and have not done yet.
//!
//! Law: a lane does what it got in that order. It waits only for what some lane was told to record before, so there is
//! always one that can go on. All that is pending is of one plan.

use std::collections::VecDeque;
use std::sync::Arc;

use warpweft_base::id::{EventId, LaneId, TaskId};

use super::SimBound;
use crate::TaskInterval;
use crate::bell::lock;

/// A command to a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Run { lane: LaneId, task: TaskId },
    Record { lane: LaneId, event: EventId },
    Wait { lane: LaneId, event: EventId },
}

impl Action {
    pub(super) const fn lane(self) -> LaneId {
        match self {
            Self::Run { lane, .. } | Self::Record { lane, .. } | Self::Wait { lane, .. } => lane,
        }
    }
}

/// How far one bound plan is in its step.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) intervals: Vec<TaskInterval>,
    /// Per event, one time for each clock.
    times: Vec<u64>,
    /// Which events a lane was told to record.
    told: Vec<bool>,
    /// Which of them are recorded.
    recorded: Vec<bool>,
    clocks: usize,
}

impl Progress {
    pub(super) fn new(tasks: usize, events: usize, clocks: usize) -> Self {
        Self {
            intervals: vec![TaskInterval::default(); tasks],
            times: vec![0; events * clocks],
            told: vec![false; events],
            recorded: vec![false; events],
            clocks,
        }
    }

    pub(super) fn begin(&mut self) {
        self.told.fill(false);
        self.recorded.fill(false);
    }

    /// Does what is no task, if it can be done: a wait holds the lane up until its event is recorded.
    fn pass(&mut self, action: Action, lane: &mut [u64]) -> bool {
        let clocks = |event: EventId| event.index() * self.clocks..(event.index() + 1) * self.clocks;
        match action {
            Action::Run { .. } => false,
            Action::Record { event, .. } => {
                self.times[clocks(event)].copy_from_slice(lane);
                self.recorded[event.index()] = true;
                true
            }
            Action::Wait { event, .. } => {
                let is_recorded = self.recorded[event.index()];
                if is_recorded {
                    let times = &self.times[clocks(event)];
                    lane.iter_mut().zip(times).for_each(|(free, time)| *free = (*free).max(*time));
                }
                is_recorded
            }
        }
    }
}

/// What is pending, each with how long the host had issued by then.
#[derive(Debug, Default)]
pub(super) struct Pending {
    plan: Option<Arc<SimBound>>,
    lanes: Vec<VecDeque<(Action, u64)>>,
}

impl Pending {
    pub(super) const fn plan(&self) -> Option<&Arc<SimBound>> {
        self.plan.as_ref()
    }

    /// Adds what its lane does next.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn add(
        &mut self,
        action: Action,
        issued: u64,
        plan: &Arc<SimBound>,
    ) -> Result<(), &'static str> {
        const NO_EVENT: &str = "the event is not of this plan, or was not recorded in this step";
        match action {
            Action::Run { lane, task } => {
                let priced = plan.tasks.get(task.index()).filter(|priced| priced.lane == lane);
                priced.ok_or("the task is not of this plan and lane")?;
            }
            Action::Record { event, .. } => {
                let mut progress = lock(&plan.progress);
                let told = progress.told.get_mut(event.index()).ok_or(NO_EVENT)?;
                if std::mem::replace(told, true) {
                    return Err("the event was recorded before in this step");
                }
            }
            Action::Wait { event, .. } => {
                let told = lock(&plan.progress).told.get(event.index()).copied();
                told.filter(|told| *told).ok_or(NO_EVENT)?;
            }
        }
        let lane = action.lane().index();
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, VecDeque::new);
        }
        self.lanes[lane].push_back((action, issued));
        self.plan.get_or_insert_with(|| Arc::clone(plan));
        Ok(())
    }

    /// Does everything that stands before the next task of each lane, and takes the task of those that begins first
    /// on rank 0, whose host last waited at `host`: which, and how long the host had issued by then. Of two that
    /// begin at one time it is the first in issue order. None is left, and nothing else, where there is none.
    pub(super) fn next(
        &mut self,
        clocks: &mut [Vec<u64>],
        host: u64,
        progress: &mut Progress,
    ) -> Option<(TaskId, u64)> {
        let mut passed = true;
        while std::mem::take(&mut passed) {
            for (queue, clock) in self.lanes.iter_mut().zip(&mut *clocks) {
                while queue.front().is_some_and(|(action, _)| progress.pass(*action, clock)) {
                    queue.pop_front();
                    passed = true;
                }
            }
        }
        let firsts = self.lanes.iter().zip(clocks).filter_map(|(queue, clock)| match queue.front()? {
            (Action::Run { lane, task }, issued) => {
                let begin = clock[0].max(host.saturating_add(*issued));
                Some((begin, *task, *lane, *issued))
            }
            _ => None,
        });
        let (_, task, lane, issued) = firsts.min()?;
        self.lanes[lane.index()].pop_front();
        Some((task, issued))
    }

    /// Forgets all of it. What was left to be done, if anything was.
    pub(super) fn clear(&mut self) -> Option<Action> {
        self.plan = None;
        let mut left = None;
        for queue in &mut self.lanes {
            left = left.or(queue.front().map(|(action, _)| *action));
            queue.clear();
        }
        left
    }
}
