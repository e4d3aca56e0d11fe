//! A plan bound to one rank: commands, events, clocks.
//!
//! Law: everything a step enqueues was made here, once; what it needs on the device (tables) lives as
//! long as this value, and so does what a recorded step refers to. Of a GPU that was abandoned it is left where it is, because giving it back
//! would wait for a stream that waits for ever.

use std::sync::Arc;

use super::command::Command;
use super::context::Context;
use super::failure::CudaFailure;
use super::script::Script;
use super::stream::{Event, Stream};
use crate::backend::TaskInterval;
use crate::backend::clock::{Clock, nanoseconds};
use crate::backend::local::ComputeCall;
use crate::id::{EventId, TaskId};

/// A plan bound to one rank.
#[derive(Debug)]
pub struct CudaBound {
    pub(super) context: Arc<Context>,
    pub(super) tasks: Vec<BoundTask>,
    pub(super) events: Vec<Event>,
    pub(super) timeline: Option<Timeline>,
    /// What its collectives are, for errors.
    pub(super) script: Arc<Script>,
    /// Steps begun.
    pub(super) steps: u64,
}

/// One task, ready to be enqueued.
#[derive(Debug)]
pub(super) struct BoundTask {
    pub(super) op: &'static str,
    pub(super) work: Work,
}

/// What a task does.
#[derive(Debug)]
pub(super) enum Work {
    /// Enqueues these, in order.
    Commands(Vec<Command>),
    /// Runs a closure, which enqueues.
    Call(ComputeCall),
    /// Sets the fault word, and what the host knows of it, to no fault.
    ClearFault(Vec<Command>),
}

impl CudaBound {
    /// Is this the plan's first step? In it ranks meet on the host before every collective, and each waits for it before it
    /// enqueues the next task. A kernel that is launched for the first time may be loaded then, for which the driver
    /// waits for the streams of the device and of those that reach its memory; one of them might wait for the
    /// very rank that loads.
    pub(super) const fn is_cold(&self) -> bool {
        self.steps <= 1
    }

    pub(super) fn task(&self, task: TaskId) -> Option<&BoundTask> {
        self.tasks.get(task.index())
    }

    pub(super) fn event(&self, event: EventId) -> Option<&Event> {
        self.events.get(event.index())
    }
}

impl Drop for CudaBound {
    fn drop(&mut self) {
        if self.context.is_abandoned() {
            std::mem::forget(std::mem::take(&mut self.tasks));
        }
    }
}

/// When tasks ran, by events of the device.
///
/// Event times are differences in f32 milliseconds, so they are taken from an event of the same step: it
/// is recorded on an idle stream at an instant the host knows. The clocks of a recorded step are part of the recording.
#[derive(Debug)]
pub(super) struct Timeline {
    start: Event,
    /// Nanoseconds of the world's clock at `start`.
    started: u64,
    tasks: Vec<(Event, Event)>,
}

impl Timeline {
    pub(super) fn new(context: &Arc<Context>, tasks: usize) -> Result<Self, CudaFailure> {
        let event = || Event::clock(Arc::clone(context));
        let tasks = (0..tasks).map(|_| Ok((event()?, event()?))).collect::<Result<_, CudaFailure>>()?;
        Ok(Self { start: event()?, started: 0, tasks })
    }

    /// A step begins; `idle` has nothing to do.
    pub(super) fn begin(&mut self, idle: &Stream, clock: Clock) -> Result<(), CudaFailure> {
        self.started = nanoseconds(clock.origin().elapsed());
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
