//! When tasks ran, by events that their lanes pass.
//!
//! Laws:
//! - An issued task has an event before it and one behind it. A recorded one has one behind it, and begins when the last of what it comes behind in
//!   its recording has ended: a replay's lanes wait for nothing else, and every event of a recording is a node that takes
//!   time. Only what comes behind nothing has an event before it there too. They order nothing.
//! - Event times are differences in f32 milliseconds, so they are taken from an event of the same step: it
//!   is recorded on an idle stream at an instant the host knows.

use std::sync::{Arc, Mutex};

use super::context::Context;
use super::failure::CudaFailure;
use super::precedence::Precedence;
use super::stream::{Event, Stream};
use crate::backend::TaskInterval;
use crate::backend::bell::lock;
use crate::backend::clock::Clock;
use crate::id::{EventId, LaneId, TaskId};

/// The events of a bound plan. Those of a recorded step are part of the recording.
#[derive(Debug)]
pub(super) struct Clocks {
    start: Event,
    /// Nanoseconds of the world's clock at `start`.
    started: u64,
    tasks: Vec<TaskClocks>,
    recording: Mutex<Precedence>,
}

/// The events of one task.
#[derive(Debug)]
struct TaskClocks {
    begin: Event,
    end: Event,
    /// What it comes behind, if it was recorded; then nothing passes `begin`.
    behind: Mutex<Vec<TaskId>>,
}

impl Clocks {
    pub(super) fn new(context: &Arc<Context>, tasks: usize) -> Result<Self, CudaFailure> {
        let event = || Event::clock(Arc::clone(context));
        let task = |_| Ok(TaskClocks { begin: event()?, end: event()?, behind: Mutex::default() });
        let tasks = (0..tasks).map(task).collect::<Result<_, CudaFailure>>()?;
        Ok(Self { start: event()?, started: 0, tasks, recording: Mutex::default() })
    }

    /// A step begins; `idle` has nothing to do.
    pub(super) fn begin(&mut self, idle: &Stream, clock: Clock) -> Result<(), CudaFailure> {
        self.started = clock.now();
        idle.record(&self.start)
    }

    /// A recording begins.
    pub(super) fn begin_recording(&self) {
        *lock(&self.recording) = Precedence::default();
    }

    /// Enqueues a task by `work`, to be timed in this step.
    pub(super) fn issued(
        &self,
        task: TaskId,
        stream: &Stream,
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        let Some(clocks) = self.tasks.get(task.index()) else { return work() };
        lock(&clocks.behind).clear();
        stream.record(&clocks.begin)?;
        work()?;
        stream.record(&clocks.end)
    }

    /// Records a task by `work`, to be timed in every replay.
    pub(super) fn recorded(
        &self,
        task: TaskId,
        (lane, stream): (LaneId, &Stream),
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        let Some(clocks) = self.tasks.get(task.index()) else { return work() };
        let behind = lock(&self.recording).behind(lane, task);
        if behind.is_empty() {
            stream.record_in_replays(&clocks.begin)?;
        }
        *lock(&clocks.behind) = behind;
        work()?;
        stream.record_in_replays(&clocks.end)
    }

    /// In the recording, `event` stands behind what is on `lane`.
    pub(super) fn event_recorded(&self, lane: LaneId, event: EventId) {
        lock(&self.recording).recorded(lane, event);
    }

    /// In the recording, `lane` waits for `event`.
    pub(super) fn event_waited(&self, lane: LaneId, event: EventId) {
        lock(&self.recording).waited(lane, event);
    }

    /// The interval of every task of the last step, issued or replayed; zeros for one that did not run.
    pub(super) fn intervals(&self) -> impl Iterator<Item = TaskInterval> {
        let at = |event: &Event| event.since(&self.start).map(|after| self.started + after.max(0.0) as u64);
        let ends: Vec<Option<u64>> = self.tasks.iter().map(|clocks| at(&clocks.end)).collect();
        let interval = |(clocks, end): (&TaskClocks, &Option<u64>)| {
            let behind = lock(&clocks.behind);
            let begin = match behind.as_slice() {
                [] => at(&clocks.begin),
                behind => behind.iter().filter_map(|task| ends.get(task.index()).copied().flatten()).max(),
            };
            begin.zip(*end).map_or_else(TaskInterval::default, |(begin, end)| TaskInterval {
                begin: begin.min(end),
                joined: begin.min(end),
                end,
            })
        };
        let all: Vec<_> = self.tasks.iter().zip(&ends).map(interval).collect();
        all.into_iter()
    }
}
