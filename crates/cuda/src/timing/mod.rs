//! Task times of a bound plan: as CUPTI saw them, or by events that their lanes pass.
//!
//! Law: the code that enqueues does not know which it is. What a timeline adds to a lane waits for
//! nothing (BK-2), and orders nothing unless it replaces an event of the plan, at the same point.

pub(crate) mod cupti;
mod precedence;
pub(crate) mod source;
pub(crate) mod task_events;
mod task_start_times;

use std::sync::{Arc, Weak};

use self::cupti::Book;
use self::task_events::TaskEvents;
use crate::device::stream::{Event, Stream};
use crate::failure::CudaFailure;
use crate::world::World;
use warpweft_backend::TaskInterval;
use warpweft_base::id::{EventId, LaneId, TaskId};

/// Where the times of a bound plan come from.
#[derive(Debug)]
pub(super) enum Timeline {
    /// Events after every task.
    Events(Arc<TaskEvents>),
    /// Activities that CUPTI tells of.
    Activities(Book),
}

impl Timeline {
    /// A step begins; `idle` has nothing to do.
    pub(super) fn begin_step(&mut self, idle: &Stream, world: &World) -> Result<(), CudaFailure> {
        match self {
            Self::Events(events) => events.begin(idle),
            Self::Activities(book) => {
                book.begin_step(world.clock.now());
                Ok(())
            }
        }
    }

    /// From now on lanes capture.
    pub(super) fn start_capture(&self) {
        match self {
            Self::Events(events) => events.begin_anew(),
            Self::Activities(book) => book.start_capture(),
        }
    }

    /// A capture was launched, and what lanes get next runs after it.
    pub(super) fn launched(&self) {
        if let Self::Events(events) = self {
            events.begin_anew();
        }
    }

    /// `event` is to be recorded on `lane`. Where the lane does not capture, returns what is already at this
    /// point of it, which will do.
    pub(super) fn event_recorded(&self, lane: LaneId, event: EventId) -> Option<&Event> {
        match self {
            Self::Events(events) => events.event_recorded(lane, event),
            Self::Activities(_) => None,
        }
    }

    /// `lane` is to wait for `event`. Where it does not capture, returns what replaced it
    /// ([`Timeline::event_recorded`]).
    pub(super) fn event_waited(&self, lane: LaneId, event: EventId) -> Option<&Event> {
        match self {
            Self::Events(events) => events.event_waited(lane, event),
            Self::Activities(_) => None,
        }
    }

    /// What can be read while lanes are waited for; nothing where records are read after the step.
    pub(super) fn events(&self) -> Weak<TaskEvents> {
        match self {
            Self::Events(events) => Arc::downgrade(events),
            Self::Activities(_) => Weak::new(),
        }
    }

    /// Has a lane run a task by `work`, or record it if it `captures`.
    pub(super) fn timed(
        &self,
        task: TaskId,
        (lane, stream, captures): (LaneId, &Stream, bool),
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        match self {
            Self::Events(events) => events.timed(task, (lane, stream, captures), work),
            Self::Activities(book) if captures => {
                work()?;
                book.captured(task, stream);
                Ok(())
            }
            Self::Activities(book) => book.issued(task, work),
        }
    }

    /// The interval of every task of the last step.
    pub(super) fn intervals(&self, world: &World, into: &mut Vec<TaskInterval>) {
        match self {
            Self::Events(events) => events.intervals(into),
            Self::Activities(book) => {
                let ended = || world.check().is_err();
                book.intervals(world.clock, world.options.deadline, ended, into);
            }
        }
    }
}
