//! The simulator: a backend in virtual time.
//!
//! Laws:
//! - **EX-1** It is driven like any backend: by the same plan, actors and messages. It learns of a task when the
//!   task is enqueued, which runs once the host waits (`pending`), and of an order when an event is recorded or
//!   waited for; it reads no fence of the plan.
//! - A lane has a clock. A task begins when the host has issued it, its lane is free and the events its lane
//!   waited for are past. It ends after its cost ([`warpweft_plan::cluster`]): a call after what its
//!   [`warpweft_plan::model::CostHint`] says, any other op after the bytes it touches at the speed of device memory,
//!   a collective after its formula, counted from the arrival of the last rank.
//! - Nothing is computed: closures are never made and never run, memory is counted and not allocated, a
//!   download gives zeros.
//! - **Symmetry.** One rank is driven. Every rank issues the same tasks in the same order (PL-1) and they
//!   cost the same, so ranks differ by their delays alone ([`warpweft_plan::cluster::Jitter`]). Each lane therefore
//!   has one clock per rank, all of which move when a task runs:
//!
//!   `begin[r] = max(host[r], lane[r])`; `end[r] = begin[r] + d · slow[r] · (1 + mean · E[r])` for a local
//!   task of cost d, `end[r] = max over q of begin[q] + d` for a collective, q being the ranks of its group
//!   that r is of.
//!
//!   Without jitter all clocks agree and one is kept. At most [`MAX_CLOCKS`] are kept. A larger world is
//!   sampled by that many of its ranks, which understates the maximum: by `mean · ln(ranks / MAX_CLOCKS)` of a
//!   task, for exponential delays.
//! - What a lane takes from another ([`warpweft_plan::cluster::Contention`]) is charged for the time in which both
//!   run on rank 0, to the one that begins later: the end of what began before is not changed. So a step takes the
//!   same whatever the order in which actors issue, and what its plan's forecast says, but for what waits for the
//!   host.
//!
//! Host work other than launches, and other ranks than rank 0 in [`Backend::intervals`], are deliberately
//! absent.

mod bind;
mod machine;
mod pending;
mod surface;
mod world;

use std::sync::{Arc, Mutex};
use std::time::Instant;

pub use machine::END;
pub use machine::MAX_CLOCKS;
pub use surface::SimSurface;
pub use world::SimWorld;

use self::bind::Priced;
use self::machine::Problem;
use self::pending::{Action, Progress};
use self::world::Shared;
use super::bell::lock;
use super::{Backend, BackendError, ClosureFault, Inspection, TaskInterval, within};
use warpweft_base::errors::shown;
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::{ByteSize, Reduce};

/// Rank 0 of a [`SimWorld`], which stands for all of them.
#[derive(Debug)]
pub struct SimBackend {
    shared: Arc<Shared>,
}

/// An arena that is counted.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct SimMemory {
    bytes: usize,
}

/// One lane.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct SimStream {
    lane: LaneId,
}

/// A plan with the cost of every task.
#[doc(hidden)]
#[derive(Debug)]
pub struct SimBound {
    tasks: Vec<Priced>,
    progress: Mutex<Progress>,
}

/// A capture: what was enqueued, in that order.
#[doc(hidden)]
#[derive(Debug)]
pub struct SimGraph {
    actions: Vec<Action>,
}

impl SimBackend {
    fn lane_error(&self, lane: LaneId, reason: impl Into<String>) -> BackendError {
        BackendError::Lane { rank: self.rank(), lane, reason: reason.into() }
    }

    fn problem(&self, (lane, reason): Problem) -> BackendError {
        self.lane_error(lane, reason)
    }

    fn submit(&self, bound: &Arc<SimBound>, action: Action) -> Result<(), BackendError> {
        let mut machine = lock(&self.shared.machine);
        if let Some(capture) = &mut machine.capture {
            capture.push(action);
            return Ok(());
        }
        machine.issue(action);
        machine.submit(action, bound).map_err(|problem| self.problem(problem))
    }

    fn same_length(&self, memory: &SimMemory, region: Region, bytes: usize) -> Result<(), BackendError> {
        if region.bytes == bytes && region.end() <= memory.bytes {
            return Ok(());
        }
        let reason =
            format!("the region has {} bytes and ends at {} of {}", region.bytes, region.end(), memory.bytes);
        Err(BackendError::Host { rank: self.rank(), bytes, reason })
    }
}

impl Backend for SimBackend {
    type Surface = SimSurface;
    type Memory = SimMemory;
    type Stream = SimStream;
    type Bound = Arc<SimBound>;
    type Graph = SimGraph;

    fn rank(&self) -> RankId {
        RankId::new(0)
    }

    fn mesh(&self) -> Mesh {
        self.shared.mesh
    }

    fn reduce(&self) -> Reduce {
        self.shared.reduce
    }

    fn describe(&self) -> String {
        let Shared { prices, mesh, .. } = &*self.shared;
        let cluster = prices.cluster();
        let (per_node, nodes) = cluster.nodes(mesh.ranks());
        format!("simulated: {mesh} on `{}`, {nodes} × {per_node}", shown(&cluster.name))
    }

    fn origin(&self) -> Instant {
        self.shared.origin
    }

    fn receive_buffer_bytes(&self, _binding: &Binding<'_>) -> Result<usize, BackendError> {
        Ok(0)
    }

    fn reserve(&self, bytes: usize, _receive_buffer: usize) -> Result<SimMemory, BackendError> {
        let memory = self.shared.prices.cluster().gpu.memory_bytes;
        if bytes as u64 > memory {
            let name = shown(&self.shared.prices.cluster().name);
            let reason = format!("a GPU of `{name}` has {}", ByteSize::new(memory).in_full());
            return Err(BackendError::Memory { rank: self.rank(), bytes, reason });
        }
        Ok(SimMemory { bytes })
    }

    fn open(
        &self,
        _memory: &SimMemory,
        lane: Lane,
        _closures: Option<ComputeFactory<SimSurface>>,
    ) -> Result<SimStream, BackendError> {
        lock(&self.shared.machine).open(lane);
        Ok(SimStream { lane: lane.id })
    }

    fn lane(&self, stream: &SimStream) -> LaneId {
        stream.lane
    }

    fn bind(&self, _memory: &SimMemory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError> {
        within(binding, self.shared.mesh)?;
        let tasks = bind::price(binding, &self.shared.prices)?;
        let clocks = lock(&self.shared.machine).clocks();
        let progress = Mutex::new(Progress::new(tasks.len(), binding.events, clocks));
        Ok(Arc::new(SimBound { tasks, progress }))
    }

    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError> {
        lock(&self.shared.machine).begin_step(bound).map_err(|problem| self.problem(problem))?;
        match lock(&self.shared.aborted).as_ref() {
            None => Ok(()),
            Some(reason) => Err(BackendError::Poisoned { reason: reason.clone() }),
        }
    }

    fn has_cold_steps(&self) -> bool {
        false
    }

    fn warmed(&self, _bound: &mut Self::Bound) {}

    fn enqueue(&self, stream: &mut SimStream, bound: &Self::Bound, task: TaskId) -> Result<(), BackendError> {
        self.submit(bound, Action::Run { lane: stream.lane, task })
    }

    fn record(
        &self,
        stream: &mut SimStream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.submit(bound, Action::Record { lane: stream.lane, event })
    }

    fn wait(&self, stream: &mut SimStream, bound: &Self::Bound, event: EventId) -> Result<(), BackendError> {
        self.submit(bound, Action::Wait { lane: stream.lane, event })
    }

    fn begin_capture(&self, streams: &mut [SimStream], bound: &Self::Bound) -> Result<(), BackendError> {
        let mut machine = lock(&self.shared.machine);
        if machine.capture.is_some() {
            let lane = streams.first().map_or(LaneId::new(0), |stream| stream.lane);
            return Err(self.lane_error(lane, "a step is being captured already"));
        }
        // A task is at most a run, a record, and a few waits; more grow the list.
        machine.capture = Some(Vec::with_capacity(bound.tasks.len() * 4));
        Ok(())
    }

    fn end_capture(&self, streams: &mut [SimStream], _bound: &Self::Bound) -> Result<SimGraph, BackendError> {
        let actions = lock(&self.shared.machine).capture.take().ok_or_else(|| {
            let lane = streams.first().map_or(LaneId::new(0), |stream| stream.lane);
            self.lane_error(lane, "no step is being captured")
        })?;
        Ok(SimGraph { actions })
    }

    fn launch(
        &self,
        streams: &mut [SimStream],
        bound: &Self::Bound,
        graph: &SimGraph,
    ) -> Result<(), BackendError> {
        let first = streams.first().map_or(LaneId::new(0), |stream| stream.lane);
        let launched = lock(&self.shared.machine).launch(first, &graph.actions, bound);
        launched.map_err(|problem| self.problem(problem))
    }

    fn synchronize(&self, stream: &mut SimStream) -> Result<(), BackendError> {
        lock(&self.shared.machine).synchronize(stream.lane).map_err(|problem| self.problem(problem))
    }

    fn take_fault(&self, _stream: &mut SimStream) -> Option<ClosureFault> {
        None
    }

    fn take_diverged(&self) -> bool {
        false
    }

    fn take_inspection(&self, _bound: &Self::Bound) -> Inspection {
        Inspection::None
    }

    fn upload(&self, memory: &SimMemory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.same_length(memory, region, bytes.len())
    }

    fn download(&self, memory: &SimMemory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.same_length(memory, region, bytes.len())?;
        bytes.fill(0);
        Ok(())
    }

    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>) {
        into.clear();
        into.extend_from_slice(&lock(&bound.progress).intervals);
    }

    fn poison(&self, reason: &str) {
        lock(&self.shared.aborted).get_or_insert_with(|| reason.to_owned());
    }

    fn abort(&self, reason: &str) {
        self.poison(reason);
    }
}
