//! When the tasks of a bound plan ran: as CUPTI saw them, or by events that their lanes pass.
//!
//! Law: whoever enqueues does not know which; what a timeline adds to a lane orders nothing and waits for nothing (BK-2).

use super::clocks::Clocks;
use super::cupti::Book;
use super::failure::CudaFailure;
use super::stream::Stream;
use super::world::World;
use crate::backend::TaskInterval;
use crate::id::{EventId, LaneId, TaskId};

/// Where the times of a bound plan come from.
#[derive(Debug)]
pub(super) enum Timeline {
    /// Events around every task.
    Events(Clocks),
    /// Activities that CUPTI tells of.
    Activities(Book),
}

impl Timeline {
    /// A step begins; `idle` has nothing to do.
    pub(super) fn begin_step(&mut self, idle: &Stream, world: &World) -> Result<(), CudaFailure> {
        match self {
            Self::Events(clocks) => clocks.begin(idle, world.clock),
            Self::Activities(book) => {
                book.begin_step(world.clock.now());
                Ok(())
            }
        }
    }

    /// From now on lanes record.
    pub(super) fn begin_recording(&self) {
        match self {
            Self::Events(clocks) => clocks.begin_recording(),
            Self::Activities(book) => book.begin_recording(),
        }
    }

    /// In a recording, `event` stands behind what is on `lane`.
    pub(super) fn event_recorded(&self, lane: LaneId, event: EventId) {
        if let Self::Events(clocks) = self {
            clocks.event_recorded(lane, event);
        }
    }

    /// In a recording, `lane` waits for `event`.
    pub(super) fn event_waited(&self, lane: LaneId, event: EventId) {
        if let Self::Events(clocks) = self {
            clocks.event_waited(lane, event);
        }
    }

    /// Has a lane run a task by `work`.
    pub(super) fn issued(
        &self,
        task: TaskId,
        stream: &Stream,
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        match self {
            Self::Events(clocks) => clocks.issued(task, stream, work),
            Self::Activities(book) => book.issued(task, work),
        }
    }

    /// Has a lane record a task by `work`.
    pub(super) fn recorded(
        &self,
        task: TaskId,
        (lane, stream): (LaneId, &Stream),
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        match self {
            Self::Events(clocks) => clocks.recorded(task, (lane, stream), work),
            Self::Activities(book) => {
                work()?;
                book.recorded(task, stream);
                Ok(())
            }
        }
    }

    /// The interval of every task of the last step.
    pub(super) fn intervals(&self, world: &World, into: &mut Vec<TaskInterval>) {
        match self {
            Self::Events(clocks) => into.extend(clocks.intervals()),
            Self::Activities(book) => {
                let ended = || world.check().is_err();
                book.intervals(world.clock, world.options.deadline, ended, into);
            }
        }
    }
}
