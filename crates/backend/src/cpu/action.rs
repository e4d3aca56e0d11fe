//! One command of a lane: run a task, record an event, or wait for one.
//!
//! Law: an action is a number and what to do with it, so it makes no difference to it whether it is done at
//! once or captured.

use std::fmt;

use warpweft_base::id::{EventId, TaskId};

/// One thing a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Runs a task.
    Run(TaskId),
    /// Records an event.
    Record(EventId),
    /// Waits for an event.
    Wait(EventId),
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(task) => write!(formatter, "run {task}: it has no such task"),
            Self::Record(event) => write!(formatter, "record {event}: it has no such event"),
            Self::Wait(event) => write!(formatter, "wait for {event}: it has no such event"),
        }
    }
}
