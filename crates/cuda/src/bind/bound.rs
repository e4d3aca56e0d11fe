//! A plan bound to one rank: commands, events, clocks.
//!
//! Law: everything a step enqueues was made here, once. What it needs on the device (tables) lives as long as
//! this value, and so does what a captured step refers to. On an abandoned GPU it is left where it is,
//! because giving it back would wait for a stream that waits for ever.

use std::sync::Arc;

use super::command::Command;
use crate::device::context::Context;
use crate::device::stream::Event;
use crate::shutdown::collective_names::CollectiveNames;
use crate::shutdown::progress::CheckedCounts;
use crate::timing::Timeline;
use warpweft_backend::local::ComputeCall;
use warpweft_base::id::{CallId, EventId, TaskId, WeightId};
use warpweft_plan::compute::OptimizerTask;

/// A plan bound to one rank.
#[derive(Debug)]
pub struct CudaBound {
    pub(crate) tasks: Vec<BoundTask>,
    pub(crate) events: Vec<Event>,
    /// The gradients that its calls write, in program order, by which an inspection names them.
    pub(crate) gradients: Vec<(CallId, WeightId)>,
    /// The counts that its calls write and that are checked, by which a fault names them.
    pub(crate) counts: Arc<CheckedCounts>,
    /// When its tasks ran, if they are timed.
    pub(crate) timeline: Option<Timeline>,
    /// What its collectives are, for error messages.
    pub(crate) script: Arc<CollectiveNames>,
    /// Whether no step of the plan has completed yet, on all ranks and without a fault. Until then ranks meet
    /// on the host before every collective, and each waits for it before it enqueues the next task. A kernel
    /// that is launched for the first time may be loaded then, for which the driver waits for the streams of
    /// the device and of those that reach its memory. One of them might wait for the very rank that loads.
    pub(crate) is_cold: bool,
    /// Dropped last: what is in it is given back before.
    pub(crate) context: Arc<Context>,
}

/// One task, ready to be enqueued.
#[derive(Debug)]
pub(crate) struct BoundTask {
    pub(crate) op: &'static str,
    pub(crate) work: Work,
}

/// What a task does.
#[derive(Debug)]
pub(crate) enum Work {
    /// Enqueues these, in order.
    Commands(Vec<Command>),
    /// Runs a closure, which enqueues.
    Call {
        call: ComputeCall,
        /// Checks the counts that it wrote, by which ranks give each other rows.
        check: Option<Command>,
        /// Inspects the gradients that it wrote, in a step in which gradients are inspected.
        inspections: Vec<Command>,
    },
    /// Runs a part of the custom optimizer, which enqueues, and then checks what an update left.
    CustomOptimizer(Arc<OptimizerTask>, Option<Command>),
    /// Sets the fault word, and what the host knows of it, to no fault.
    ClearFault(Vec<Command>),
}

impl CudaBound {
    pub(crate) fn task(&self, task: TaskId) -> Option<&BoundTask> {
        self.tasks.get(task.index())
    }

    pub(crate) fn event(&self, event: EventId) -> Option<&Event> {
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
