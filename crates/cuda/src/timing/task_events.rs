//! Task times from CUDA events that lanes pass.
//!
//! Laws:
//! - A task has one event, after all that was enqueued for it; when it began is inferred
//!   ([`super::task_start_times`]). Where that cannot be done, it has one before it too. In a capture every
//!   event is a node that takes time.
//! - Where one of the plan's own events is recorded right after an issued task, the task's event is used in
//!   its place: the same point of the same lane, passed once. Otherwise these events order nothing. In a
//!   capture they order nothing at all: there the plan's events are edges.
//! - All events are made when a plan is bound and serve every step; telling allocates nothing once
//!   warm (BK-2).
//! - They are read as they are passed while the rank waits for its lanes, where that delays nothing, and the
//!   last of them after the step.
//! - Event times are differences in f32 milliseconds, so they are taken from an event of the same step. That
//!   event is recorded on an idle stream, and the host polls it until it is passed, some microseconds. So
//!   both clocks are known to agree within one poll, and what the host enqueues later ends later.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::task_start_times::TaskStartTimes;
use crate::device::context::Context;
use crate::device::stream::{Event, Stream};
use crate::failure::CudaFailure;
use warpweft_backend::TaskInterval;
use warpweft_backend::bell::lock;
use warpweft_backend::clock::Clock;
use warpweft_base::id::{EventId, LaneId, TaskId};

/// Events read at a time while a lane is waited for. That takes a few microseconds, so the lane's end is not
/// seen late.
const SOME: usize = 16;

/// How long the host polls a step's first event, at most. It is passed late where other work keeps the device
/// busy.
const LOOK: Duration = Duration::from_micros(100);

/// The events of a bound plan. Those of a captured step are part of the capture.
#[derive(Debug)]
pub(crate) struct TaskEvents {
    clock: Clock,
    start: Event,
    tasks: Vec<EventsOfTask>,
    start_times: Mutex<TaskStartTimes>,
}

/// The events of one task.
#[derive(Debug)]
struct EventsOfTask {
    /// Passed only where the task comes after nothing.
    begin: Event,
    end: Event,
}

impl TaskEvents {
    pub(crate) fn new(context: &Arc<Context>, clock: Clock, tasks: usize) -> Result<Self, CudaFailure> {
        let event = || Event::clock(Arc::clone(context));
        let start_times = Mutex::new(TaskStartTimes::new(tasks));
        let task = |_| Ok(EventsOfTask { begin: event()?, end: event()? });
        let tasks = (0..tasks).map(task).collect::<Result<_, CudaFailure>>()?;
        Ok(Self { clock, start: event()?, tasks, start_times })
    }

    /// A step begins; `idle` has nothing to do.
    pub(crate) fn begin(&self, idle: &Stream) -> Result<(), CudaFailure> {
        idle.record(&self.start)?;
        let recorded = self.clock.now();
        let started = idle.meter().driver(|| {
            let mut now = recorded;
            while !self.start.is_passed() && u128::from(now - recorded) < LOOK.as_nanos() {
                now = self.clock.now();
            }
            now
        });
        lock(&self.start_times).begin_step(started);
        Ok(())
    }

    /// A capture begins, or was launched.
    pub(crate) fn begin_anew(&self) {
        lock(&self.start_times).begin_anew();
    }

    /// Enqueues a task by `work`, to be timed in this step, or records it, to be timed in every replay.
    pub(super) fn timed(
        &self,
        task: TaskId,
        (lane, stream, records): (LaneId, &Stream, bool),
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        let Some(events) = self.tasks.get(task.index()) else { return work() };
        let pass = |event| if records { stream.record_in_replays(event) } else { stream.record(event) };
        let enqueued = (!records).then(|| self.clock.now());
        if lock(&self.start_times).put(lane, task, enqueued) {
            pass(&events.begin)?;
        }
        work()?;
        pass(&events.end)
    }

    /// `event` is to be recorded on `lane`. Returns what is there already, if the lane passed the clock of
    /// its last task just before.
    pub(crate) fn event_recorded(&self, lane: LaneId, event: EventId) -> Option<&Event> {
        self.after(lock(&self.start_times).precedence.recorded(lane, event)?)
    }

    /// `lane` is to wait for `event`. Returns what is where that was recorded, as [`TaskEvents::event_recorded`]
    /// said.
    pub(crate) fn event_waited(&self, lane: LaneId, event: EventId) -> Option<&Event> {
        self.after(lock(&self.start_times).precedence.waited(lane, event)?)
    }

    fn after(&self, task: TaskId) -> Option<&Event> {
        self.tasks.get(task.index()).map(|events| &events.end)
    }

    /// How many nanoseconds after the step's start a task had ended; `None` if its lane has not come there.
    fn ended(&self, task: TaskId) -> Option<f64> {
        self.after(task)?.since(&self.start)
    }

    /// Reads some of the events that were passed. Says whether there was one.
    pub(crate) fn read_some(&self) -> bool {
        lock(&self.start_times).note_ends(SOME, |task| self.ended(task))
    }

    /// The interval of every task of the last step, issued or replayed; zeros for one that did not run.
    pub(crate) fn intervals(&self, into: &mut Vec<TaskInterval>) {
        let mut start_times = lock(&self.start_times);
        start_times.note_all_ends(|task| self.ended(task));
        let entered = |task: TaskId| self.tasks.get(task.index())?.begin.since(&self.start);
        start_times.intervals(entered, into);
    }
}
