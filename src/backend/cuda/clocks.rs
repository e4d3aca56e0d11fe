//! When tasks ran, by events that their lanes pass.
//!
//! Laws:
//! - A lane passes one event before a task and one behind it, in a step or in every replay of it. They order nothing.
//! - Event times are differences in f32 milliseconds, so they are taken from an event of the same step: it
//!   is recorded on an idle stream at an instant the host knows.

use std::sync::Arc;

use super::context::Context;
use super::failure::CudaFailure;
use super::stream::{Event, Stream};
use crate::backend::TaskInterval;
use crate::backend::clock::Clock;
use crate::id::TaskId;

/// The events of a bound plan. Those of a recorded step are part of the recording.
#[derive(Debug)]
pub(super) struct Clocks {
    start: Event,
    /// Nanoseconds of the world's clock at `start`.
    started: u64,
    tasks: Vec<(Event, Event)>,
}

impl Clocks {
    pub(super) fn new(context: &Arc<Context>, tasks: usize) -> Result<Self, CudaFailure> {
        let event = || Event::clock(Arc::clone(context));
        let tasks = (0..tasks).map(|_| Ok((event()?, event()?))).collect::<Result<_, CudaFailure>>()?;
        Ok(Self { start: event()?, started: 0, tasks })
    }

    /// A step begins; `idle` has nothing to do.
    pub(super) fn begin(&mut self, idle: &Stream, clock: Clock) -> Result<(), CudaFailure> {
        self.started = clock.now();
        idle.record(&self.start)
    }

    /// Where the times of a task go that is about to be enqueued.
    pub(super) fn task(&self, task: TaskId) -> Option<&(Event, Event)> {
        self.tasks.get(task.index())
    }

    /// The interval of every task of the last step, issued or replayed; zeros for one that did not run.
    pub(super) fn intervals(&self) -> impl Iterator<Item = TaskInterval> + '_ {
        self.tasks.iter().map(|(begin, end)| {
            let at =
                |event: &Event| event.since(&self.start).map(|after| self.started + after.max(0.0) as u64);
            match (at(begin), at(end)) {
                (Some(begin), Some(end)) => TaskInterval { begin, joined: begin, end },
                _ => TaskInterval::default(),
            }
        })
    }
}
