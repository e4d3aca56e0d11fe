//! One lane of one rank: a stream, and the closures if it computes.
//!
//! Laws:
//! - **BK-2** Enqueuing neither allocates nor waits, unless ranks share a GPU ([`crate::world::HostMeeting`]).
//! - A closure that fails leaves its call in the fault word, and no closure runs again in this step, nor the custom
//!   optimizer of updates. The host knows of a fault as soon as the closure returns, because closures run while they
//!   are enqueued. Of another rank's fault, of counts above their capacity, or of a gradient that is not finite, only
//!   the device knows: the optimizer's kernels read the vote, as the library's own do.
//! - Counts that a call wrote are checked after it, on its lane, also in a captured step, and leave no slot that
//!   counts more rows than it has: closures go on in that step and may read them.
//! - A collective leaves the number of its task, counted from 1, in the lane's word of pinned memory once it
//!   is done; so a lane that makes no progress can be reported by task.

use std::sync::Arc;
use std::time::Duration;

use super::bound::{CudaBound, Work};
use super::command::Command;
use crate::device::address::DeviceAddress;
use crate::device::stream::Event;
use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::kernels::Mark;
use crate::surface::{CudaHandles, CudaSurface};
use crate::transport::signal::MemoryOperations;
use crate::world::World;
use warpweft_backend::closures::{Closures, fault_word};
use warpweft_backend::{Activity, ClosureFault};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::layout::{Lane, LaneKind};

/// One lane of one rank.
#[derive(Debug)]
pub struct CudaStream {
    /// Keeps the memory of all ranks, which this lane's work may reach.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) world: Arc<World>,
    pub(crate) rank: RankId,
    pub(crate) lane: Lane,
    /// What closures enqueue with.
    pub(crate) handles: CudaHandles,
    pub(crate) arena: DeviceAddress,
    pub(crate) stream: Arc<Stream>,
    pub(crate) closures: Closures<CudaSurface>,
    /// The first fault of this step's closures.
    pub(crate) fault: Option<ClosureFault>,
    /// No closure runs until the fault word is cleared.
    pub(crate) faulted: bool,
    /// How long the host last waited for the lane.
    pub(crate) usual_wait: Duration,
    /// Whether the lane captures.
    pub(crate) captures: bool,
    /// Joins a capture at its end.
    pub(crate) join: Event,
}

impl Drop for CudaStream {
    /// Closures are dropped before the stream, on which they may enqueue to the last. They too have memory
    /// and code of the GPU, in contexts that they retained themselves. On an abandoned GPU they are left
    /// where they are, since giving either back waits for its streams: this was seen as a process that did
    /// not end.
    fn drop(&mut self) {
        let closures = std::mem::replace(&mut self.closures, Closures::None);
        if self.stream.context().is_abandoned() {
            std::mem::forget(closures);
        }
    }
}

impl CudaStream {
    pub(crate) fn lane(&self) -> LaneId {
        self.lane.id
    }

    /// Whether the lane carries collectives.
    pub(crate) fn communicates(&self) -> bool {
        matches!(self.lane.kind, LaneKind::Communicator(_))
    }

    /// Enqueues one task. With `inspects`, a call that writes gradients and has not failed is followed by their
    /// inspection, which is part of the task: what comes after the one comes after the other. Returns whether one is.
    pub(crate) fn enqueue(
        &mut self,
        bound: &CudaBound,
        task: TaskId,
        inspects: bool,
    ) -> Result<bool, CudaFailure> {
        let missing = || CudaFailure::Refused(format!("the bound plan has no {task}"));
        let work = &bound.task(task).ok_or_else(missing)?.work;
        let Self { stream, lane, captures, rank, arena, handles, closures, fault, faulted, .. } = self;
        // The driver's time from the first command to the last: between them there is only this loop, and a look
        // at the clock around each would take longer.
        let all = |commands: &[Command]| {
            let run = || commands.iter().try_for_each(|command| command.enqueue(stream));
            stream.meter().within(Activity::Driver, run)
        };
        let mut inspected = false;
        let mut enqueue = || match work {
            Work::Commands(commands) => all(commands),
            Work::ClearFault(commands) => {
                *faulted = false;
                all(commands)
            }
            // The vote will skip the step, so a custom optimizer has nothing to do either.
            Work::Call { .. } | Work::CustomOptimizer(..) if *faulted => Ok(()),
            Work::Call { call, check, inspections } => {
                let surface = CudaSurface::new(*arena, handles.clone(), call.call.clone());
                let run = || closures.run(*rank, &call.call, &surface);
                let failed = stream.meter().within(Activity::Closure, run);
                let failed = failed.map_err(|error| CudaFailure::Refused(error.to_string()))?;
                if let Some(failed) = failed {
                    *faulted = true;
                    // No kernel: one that is first needed when a closure fails would have to be loaded then.
                    let mark = Mark { word: arena.plus(call.fault.offset), number: fault_word(failed.call) };
                    MemoryOperations::mark(mark).enqueue(stream)?;
                    fault.get_or_insert(failed);
                } else {
                    all(check.as_slice())?;
                    if inspects && !inspections.is_empty() {
                        all(inspections)?;
                        inspected = true;
                    }
                }
                Ok(())
            }
            Work::CustomOptimizer(task, check) => {
                let surface = CudaSurface::new(*arena, handles.clone(), task.clone());
                let run = || closures.custom_optimizer(*rank, task, &surface);
                let done = stream.meter().within(Activity::Closure, run);
                done.map_err(|error| CudaFailure::Refused(error.to_string()))?;
                all(check.as_slice())
            }
        };
        match &bound.timeline {
            None => enqueue(),
            Some(timeline) => timeline.timed(task, (lane.id, stream, *captures), enqueue),
        }?;
        Ok(inspected)
    }

    pub(crate) fn record(&self, bound: &CudaBound, event: EventId) -> Result<(), CudaFailure> {
        let missing = || CudaFailure::Refused(format!("the bound plan has no {event}"));
        let own = bound.event(event).ok_or_else(missing)?;
        let stands_in =
            bound.timeline.as_ref().and_then(|timeline| timeline.event_recorded(self.lane(), event));
        if stands_in.is_some() && !self.captures { Ok(()) } else { self.stream.record(own) }
    }

    pub(crate) fn wait(&self, bound: &CudaBound, event: EventId) -> Result<(), CudaFailure> {
        let missing = || CudaFailure::Refused(format!("the bound plan has no {event}"));
        let own = bound.event(event).ok_or_else(missing)?;
        let stands_in =
            bound.timeline.as_ref().and_then(|timeline| timeline.event_waited(self.lane(), event));
        self.stream.wait(stands_in.filter(|_| !self.captures).unwrap_or(own))
    }
}
