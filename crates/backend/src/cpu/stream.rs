//! A lane's host side: a bounded queue that the host fills, and a recorder.
//!
//! Laws:
//! - **BK-2** A command is a small message into a queue that has room for a whole step: pushing it neither
//!   allocates nor waits. A queue grows when it first meets a plan that needs more; a full one is an error.
//! - While a stream captures, nothing reaches the lane. A capture is replayed by one message per lane, with
//!   the same events in a new epoch.
//! - A stream that is dropped at rest closes its lane. One that is dropped before its lane is done poisons
//!   the world, because peers and sister lanes may wait for what will never come.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::action::Action;
use super::bound::{BoundPlan, CpuBound};
use super::captured::Captured;
use super::context::LaneContext;
use super::lane::{Command, LaneState, LaneThread};
use super::memory::Arena;
use super::snapshot::SnapshotPlace;
use super::surface::CpuSurface;
use super::world::Presence;
use crate::closures::Closures;
use crate::{BackendError, ClosureFault};
use warpweft_base::id::LaneId;
use warpweft_base::panics::kept_words;
use warpweft_base::queue::{Refused, Sender, bounded};
use warpweft_plan::compute::{ComputeFactory, Seat};
use warpweft_plan::layout::{Lane, LaneKind};

/// Stack of a lane that runs no closures, whose calls are ours and not deep. A closure's has the system's usual size.
pub(super) const STACK: usize = 512 << 10;

/// Commands a queue holds before it has met a plan.
const FIRST_QUEUE: usize = 64;

/// One lane of one rank, as its host sees it.
#[derive(Debug)]
pub struct CpuStream {
    lane: Lane,
    presence: Arc<Presence>,
    state: Arc<LaneState>,
    queue: Option<Sender<Command>>,
    /// Commands sent since the lane was opened.
    sent: u64,
    capture: Option<CaptureInProgress>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct CaptureInProgress {
    plan: Arc<BoundPlan>,
    actions: Vec<Action>,
}

/// A capture: what each lane does, once in a step.
#[derive(Debug)]
pub struct CpuGraph {
    captured: Arc<Captured>,
}

impl CpuStream {
    /// Starts the lane's thread and makes the closures on it.
    pub(super) fn open(
        presence: Arc<Presence>,
        (arena, snapshot): (Arc<Arena>, SnapshotPlace),
        lane: Lane,
        closures: Option<ComputeFactory<CpuSurface>>,
    ) -> Result<Self, BackendError> {
        let rank = presence.rank;
        let refusal = |reason| BackendError::Lane { rank, lane: lane.id, reason };
        let places = match lane.kind {
            LaneKind::Communicator(communicator) => Some(presence.world.places(communicator, rank)),
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => None,
        };
        let state = Arc::new(LaneState::new());
        let (queue, commands) = bounded(FIRST_QUEUE);
        let (made, ready) = std::sync::mpsc::sync_channel(1);
        let near = Arc::clone(&presence);
        let far = Arc::clone(&state);
        let mut thread = std::thread::Builder::new().name(format!("{rank} {}", lane.kind));
        if closures.is_none() {
            thread = thread.stack_size(STACK);
        }
        let thread = thread.spawn(move || {
            let closures = match Closures::make(closures, Seat::new(rank, ())) {
                Ok(closures) => closures,
                Err(reason) => return drop(made.send(Err(reason))),
            };
            if made.send(Ok(())).is_ok() {
                let context =
                    LaneContext { lane, presence, arena, snapshot, places, closures, blocks: Vec::new() };
                LaneThread { context, state: far }.obey(commands);
            }
        });
        let thread = thread.map_err(|error| {
            refusal(format!(
                "its thread cannot be started: {error}; use fewer ranks or raise the limit of threads"
            ))
        })?;
        match ready.recv().unwrap_or_else(|_| Err("its thread ended at once; please report it".to_owned())) {
            Ok(()) => Ok(Self {
                lane,
                presence: near,
                state,
                queue: Some(queue),
                sent: 0,
                capture: None,
                thread: Some(thread),
            }),
            Err(reason) => {
                // The thread has said its last word.
                drop(thread.join());
                Err(refusal(reason))
            }
        }
    }

    pub(super) fn lane(&self) -> LaneId {
        self.lane.id
    }

    /// Hands one action to the lane, or to the capture.
    pub(super) fn submit(&mut self, bound: &CpuBound, action: Action) -> Result<(), BackendError> {
        self.presence.world.poison.check()?;
        match &mut self.capture {
            Some(capture) if Arc::ptr_eq(&capture.plan, &bound.plan) => {
                capture.actions.push(action);
                Ok(())
            }
            Some(_) => {
                Err(self.refusal("it captures a step of another plan; end the capture first".to_owned()))
            }
            None => {
                self.make_room(&bound.plan)?;
                self.send(Command::Act { plan: Arc::clone(&bound.plan), epoch: bound.epoch, action })
            }
        }
    }

    /// Waits until the lane is at rest. What it did before the world was poisoned is done.
    pub(super) fn synchronize(&mut self) -> Result<(), BackendError> {
        self.state.wait(self.sent);
        self.state.take_error().map_or(Ok(()), Err)
    }

    pub(super) fn take_fault(&mut self) -> Option<ClosureFault> {
        self.state.take_fault()
    }

    /// Changes to a larger queue when a step of the plan needs one. It has room for two steps: the next one
    /// may be enqueued while the lane still empties the queue of the last.
    fn make_room(&mut self, plan: &BoundPlan) -> Result<(), BackendError> {
        let needed = plan.commands(self.lane.id).saturating_mul(2);
        if self.queue.as_ref().is_some_and(|queue| queue.capacity() < needed) {
            let (larger, commands) = bounded(needed);
            self.send(Command::Continue(commands))?;
            self.queue = Some(larger);
        }
        Ok(())
    }

    fn send(&mut self, command: Command) -> Result<(), BackendError> {
        let sent = match &self.queue {
            Some(queue) => queue.send(command).map_err(|error| match error {
                Refused::Full => "its queue is full; synchronize before enqueuing another step",
                Refused::Closed => "its thread has ended",
            }),
            None => Err("it is closed"),
        };
        sent.map_err(|reason| self.refusal(reason.to_owned()))?;
        self.sent += 1;
        Ok(())
    }

    fn refusal(&self, reason: String) -> BackendError {
        BackendError::Lane { rank: self.presence.rank, lane: self.lane.id, reason }
    }
}

/// From now on `streams` capture.
pub(super) fn begin_capture(streams: &mut [CpuStream], bound: &CpuBound) -> Result<(), BackendError> {
    if let Some(stream) = streams.iter().find(|stream| stream.capture.is_some()) {
        return Err(stream.refusal("it captures already; end that capture first".to_owned()));
    }
    for stream in streams {
        stream.capture = Some(CaptureInProgress { plan: Arc::clone(&bound.plan), actions: Vec::new() });
    }
    Ok(())
}

/// What `streams` have captured.
pub(super) fn end_capture(streams: &mut [CpuStream], bound: &CpuBound) -> Result<CpuGraph, BackendError> {
    for stream in streams.iter() {
        match &stream.capture {
            Some(capture) if Arc::ptr_eq(&capture.plan, &bound.plan) => {}
            Some(_) => return Err(stream.refusal("it captures a step of another plan".to_owned())),
            None => return Err(stream.refusal("it does not capture; begin a capture first".to_owned())),
        }
    }
    let lanes = streams.iter_mut().map(|stream| {
        let actions = stream.capture.take().map_or_else(Vec::new, |capture| capture.actions);
        (stream.lane.id, actions)
    });
    let captured = Arc::new(Captured::new(Arc::clone(&bound.plan), lanes));
    if let Some(first) = streams.first() {
        first.presence.world.poison.watch(Arc::<Captured>::downgrade(&captured));
    }
    Ok(CpuGraph { captured })
}

/// Sends each lane its part of a capture.
pub(super) fn launch(
    streams: &mut [CpuStream],
    bound: &CpuBound,
    graph: &CpuGraph,
) -> Result<(), BackendError> {
    let captured = &graph.captured;
    let lanes = streams.len();
    for (position, stream) in streams.iter_mut().enumerate() {
        stream.presence.world.poison.check()?;
        if stream.capture.is_some() {
            return Err(stream.refusal("it captures; end the capture before launching its graph".to_owned()));
        }
        let same_lane = captured.lanes.get(position).is_some_and(|part| part.lane == stream.lane.id);
        if lanes != captured.lanes.len() || !same_lane || !Arc::ptr_eq(&captured.plan, &bound.plan) {
            return Err(stream.refusal("the graph was captured from other lanes or another plan".to_owned()));
        }
        stream.make_room(&bound.plan)?;
        if stream.queue.as_ref().is_none_or(Sender::is_full) {
            return Err(stream.refusal("its queue is full; synchronize before launching again".to_owned()));
        }
    }
    for (position, stream) in streams.iter_mut().enumerate() {
        stream.send(Command::Replay { captured: Arc::clone(captured), position, epoch: bound.epoch })?;
    }
    Ok(())
}

impl Drop for CpuStream {
    fn drop(&mut self) {
        let Presence { world, rank, .. } = &*self.presence;
        if !self.state.is_done(self.sent) {
            let Lane { id, kind } = self.lane;
            world.poison.set(format!("{rank} dropped {id} ({kind}) before its work was done"));
        }
        drop(self.queue.take());
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            world.poison.set(format!("the thread of {rank}, {} died: {}", self.lane.id, kept_words(panic)));
        }
    }
}
