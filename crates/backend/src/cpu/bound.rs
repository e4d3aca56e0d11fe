//! A plan bound to one rank: ops, events, times.
//!
//! Laws:
//! - Everything a task needs was resolved when the plan was bound; running it looks up nothing except its own
//!   entry.
//! - An event is a counter. It is recorded in epoch `e` once the counter has reached `e`; a new step is a new
//!   epoch, so nothing is ever reset and no step sees another one's events.
//! - Times are written by the lane that ran the task, into places made at bind time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bell::{Bell, Wake};
use crate::local::LocalOp;
use crate::poison::Poison;
use crate::{BackendError, TaskInterval};
use warpweft_base::id::{EventId, LaneId, TaskId};

/// A plan bound to one rank, in its current step.
#[derive(Debug)]
pub struct CpuBound {
    pub(super) plan: Arc<BoundPlan>,
    pub(super) epoch: u64,
}

/// The part of a bound plan that lanes share.
#[derive(Debug)]
pub(super) struct BoundPlan {
    pub(super) tasks: Vec<BoundTask>,
    pub(super) events: Vec<Event>,
    /// Commands one issued step puts on a lane, at most, for lanes that have tasks.
    pub(super) issued: Vec<(LaneId, usize)>,
    /// Commands one replayed step puts on any lane, at most.
    pub(super) replayed: usize,
}

/// One task, ready to run.
#[derive(Debug)]
pub(super) struct BoundTask {
    pub(super) id: TaskId,
    pub(super) name: &'static str,
    pub(super) op: LocalOp,
    pub(super) times: Times,
}

impl BoundPlan {
    /// Commands one step puts on `lane`, at most.
    pub(super) fn commands(&self, lane: LaneId) -> usize {
        let issued = self.issued.iter().find(|(other, _)| *other == lane);
        issued.map_or(0, |(_, commands)| *commands).max(self.replayed)
    }

    pub(super) fn task(&self, task: TaskId) -> Option<&BoundTask> {
        self.tasks.get(task.index())
    }

    pub(super) fn event(&self, event: EventId) -> Option<&Event> {
        self.events.get(event.index())
    }
}

impl Wake for BoundPlan {
    fn wake(&self) {
        self.events.iter().for_each(Event::wake);
    }
}

/// What a fence waits for.
#[derive(Debug, Default)]
pub(super) struct Event {
    epoch: AtomicU64,
    recorded: Bell,
}

impl Event {
    /// Wakes the waiters, which then look at the poison.
    pub(super) fn wake(&self) {
        self.recorded.ring();
    }

    /// Notes that the lane has reached the record of this epoch.
    pub(super) fn record(&self, epoch: u64) {
        self.epoch.fetch_max(epoch, Ordering::Release);
        self.recorded.ring();
    }

    /// Waits until the event is recorded in this epoch.
    pub(super) fn wait(&self, epoch: u64, poison: &Poison) -> Result<(), BackendError> {
        self.recorded.wait_for(|| match self.epoch.load(Ordering::Acquire) {
            recorded if recorded >= epoch => Some(Ok(())),
            _ => poison.check().err().map(Err),
        })
    }
}

/// When a task ran last.
#[derive(Debug, Default)]
pub(super) struct Times {
    epoch: AtomicU64,
    begin: AtomicU64,
    joined: AtomicU64,
    end: AtomicU64,
}

impl Times {
    /// Keeps the interval of this epoch.
    pub(super) fn keep(&self, epoch: u64, interval: TaskInterval) {
        self.begin.store(interval.begin, Ordering::Relaxed);
        self.joined.store(interval.joined, Ordering::Relaxed);
        self.end.store(interval.end, Ordering::Relaxed);
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The interval of this epoch; zeros if the task did not run in it.
    pub(super) fn of(&self, epoch: u64) -> TaskInterval {
        if self.epoch.load(Ordering::Acquire) != epoch {
            return TaskInterval::default();
        }
        TaskInterval {
            begin: self.begin.load(Ordering::Relaxed),
            joined: self.joined.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
        }
    }
}
