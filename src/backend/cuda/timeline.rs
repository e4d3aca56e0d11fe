//! When the tasks of a bound plan ran: as CUPTI saw them, or by events that their lanes pass.
//!
//! Law: whoever enqueues does not know which; what a timeline adds to a lane orders nothing and waits for nothing (BK-2).

use super::clocks::Clocks;
use super::cupti::Book;
use super::failure::CudaFailure;
use super::stream::Stream;
use super::world::World;
use crate::backend::TaskInterval;
use crate::id::TaskId;

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
        if let Self::Activities(book) = self {
            book.begin_recording();
        }
    }

    /// Enqueues a task on `stream`, which `records` or runs, by `work`.
    pub(super) fn enqueue(
        &self,
        task: TaskId,
        (stream, records): (&Stream, bool),
        work: impl FnOnce() -> Result<(), CudaFailure>,
    ) -> Result<(), CudaFailure> {
        match self {
            Self::Events(clocks) => {
                let pass =
                    |clock| if records { stream.record_in_replays(clock) } else { stream.record(clock) };
                let Some((begin, end)) = clocks.task(task) else { return work() };
                pass(begin)?;
                work()?;
                pass(end)
            }
            Self::Activities(book) if records => {
                work()?;
                book.recorded(task, stream);
                Ok(())
            }
            Self::Activities(book) => book.issued(task, work),
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
