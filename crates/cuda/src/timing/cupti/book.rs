//! The CUPTI book of a bound plan: the task that is enqueuing, the task of each captured node, and their times.
//!
//! Law: a task of a book is named by its number in the plan; two plans, or one plan bound twice, have two books.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::nodes::CapturedGraph;
use super::place::Place;
use super::profiler::Profiler;
use crate::device::stream::Stream;
use warpweft_backend::TaskInterval;
use warpweft_backend::bell::lock;
use warpweft_backend::clock::Clock;
use warpweft_base::id::{LaneId, TaskId};

/// The tasks of one bound plan, as CUPTI sees them.
#[derive(Debug)]
pub(crate) struct Book {
    profiler: Arc<Profiler>,
    number: u32,
    /// The lane of every task.
    lanes: Vec<LaneId>,
    capture: Mutex<CapturedGraph>,
    /// When the step began, in nanoseconds of the world's clock.
    begun: u64,
}

impl Book {
    /// The book of a plan whose tasks are on these lanes.
    pub(crate) fn new(profiler: &Arc<Profiler>, lanes: Vec<LaneId>) -> Self {
        let number = profiler.number();
        Self { profiler: Arc::clone(profiler), number, lanes, capture: Mutex::default(), begun: 0 }
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self, now: u64) {
        self.begun = now;
    }

    /// A capture begins.
    pub(crate) fn start_capture(&self) {
        *lock(&self.capture) = CapturedGraph::default();
    }

    /// Runs `work`; what it enqueues belongs to `task`.
    pub(crate) fn issued<T>(&self, task: TaskId, work: impl FnOnce() -> T) -> T {
        self.profiler.mark(self.place(task), work)
    }

    /// What was captured since the last call belongs to `task`. Where that cannot be found out, the task is
    /// shown empty, and the host's lane says why.
    pub(crate) fn captured(&self, task: TaskId, stream: &Stream) {
        let added = lock(&self.capture).added(stream);
        if let Err(failure) = added.and_then(|nodes| self.profiler.note(&nodes, self.place(task))) {
            tracing::warn!(%task, %failure, "the device times of a captured task are lost");
        }
    }

    /// The interval of every task of the last step, once the ranks of this process are all here; none if
    /// `ended` says that they will not come, or the deadline passes.
    pub(crate) fn intervals(
        &self,
        clock: Clock,
        deadline: Duration,
        ended: impl Fn() -> bool,
        into: &mut Vec<TaskInterval>,
    ) {
        if let Some(step) = self.profiler.meet(clock, deadline, ended) {
            into.extend(step.attributed.intervals(self.number, &self.lanes, step.ahead, self.begun));
        }
    }

    const fn place(&self, task: TaskId) -> Place {
        Place { book: self.number, task }
    }
}

impl Drop for Book {
    fn drop(&mut self) {
        self.profiler.forget(self.number);
    }
}
