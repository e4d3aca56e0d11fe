//! The CPU backend: threads as streams, counters as events, one arena per rank.
//!
//! Laws:
//! - Ranks are threads of one process; a [`CpuWorld`] is all they share. Nothing is global.
//! - What runs here is what runs on a device: lanes in order, fences between them, steps captured and
//!   replayed through the same interface. Reductions add in rank order, so results do not depend on timing.
//! - Nothing hangs: a rank that dies, leaves or is aborted ends every wait of its peers with the reason.
//!
//! One idea per file: `memory` lends the arena and holds the only `unsafe`, `stream` and `lane` are the two
//! ends of a queue, `captured` is what a queue replays, `bound` is a plan ready to run, `bind` makes it,
//! `limits` refuses ranks that the system has no room for, `roll` finds ranks that disagree, `rendezvous` is
//! where ranks meet, `collective` is what they pull; the
//! rest is arithmetic.

mod action;
mod adam;
mod bind;
mod bound;
mod captured;
mod collective;
mod context;
mod delayed;
mod gradient;
mod lane;
mod limits;
mod memory;
mod op_error;
mod ops;
mod optimizer;
mod pace;
mod planes;
mod quantize;
mod rendezvous;
mod roll;
mod skip;
mod snapshot;
mod squares;
mod stream;
mod surface;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

#[doc(hidden)]
pub use bound::CpuBound;
pub use memory::{ReadSlice, WriteSlice};
pub use pace::Pace;
#[doc(hidden)]
pub use stream::{CpuGraph, CpuStream};
pub use surface::{CpuSurface, on_cpu};
pub use world::{CpuOptions, CpuWorld};

use self::action::Action;
use self::limits::Limits;
use self::memory::{Arena, BorrowError};
use self::snapshot::{CpuSnapshot, SnapshotPlace};
use self::world::Presence;
use super::bell::lock;
use super::{Backend, BackendError, ClosureFault, Inspection, SnapshotMemory, TaskInterval};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_base::time::Nanoseconds;
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// One rank of a [`CpuWorld`].
///
/// To its peers a rank is gone once its backend and all its streams are dropped; a stream that is dropped
/// before its lane is done poisons the world.
#[derive(Debug)]
pub struct CpuBackend {
    presence: Arc<Presence>,
}

/// The arena of one rank.
#[doc(hidden)]
#[derive(Debug)]
pub struct CpuMemory {
    arena: Arc<Arena>,
    snapshot: SnapshotPlace,
}

impl CpuBackend {
    fn new(presence: Arc<Presence>) -> Self {
        Self { presence }
    }

    fn host(&self, bytes: usize, reason: impl std::fmt::Display) -> BackendError {
        BackendError::Host { rank: self.presence.rank, bytes, reason: reason.to_string() }
    }

    fn same_length(&self, region: Region, bytes: usize) -> Result<(), BackendError> {
        if region.bytes == bytes {
            return Ok(());
        }
        Err(self.host(bytes, format_args!("the region has {} bytes", region.bytes)))
    }
}

impl Backend for CpuBackend {
    type Surface = CpuSurface;
    type Memory = CpuMemory;
    type Stream = CpuStream;
    type Bound = CpuBound;
    type Graph = CpuGraph;

    fn rank(&self) -> RankId {
        self.presence.rank
    }

    fn mesh(&self) -> Mesh {
        self.presence.world.mesh
    }

    fn reduce(&self) -> Reduce {
        Reduce::Ordered
    }

    fn describe(&self) -> String {
        let world = &self.presence.world;
        let link = match world.options.link {
            None => "links as fast as memory".to_owned(),
            Some(Pace { bytes_per_s, latency }) => {
                format!("links paced to {} MB/s and {}", bytes_per_s * 1e-6, Nanoseconds::from(latency))
            }
        };
        format!("cpu, {} in one process, {link}", world.mesh)
    }

    fn origin(&self) -> Instant {
        self.presence.world.clock.origin()
    }

    fn receive_buffer_bytes(&self, _binding: &Binding<'_>) -> Result<usize, BackendError> {
        Ok(0)
    }

    fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), BackendError> {
        Limits::of_this_process().admit(ranks, lanes, bytes)
    }

    fn reserve(&self, bytes: usize, _receive_buffer: usize) -> Result<CpuMemory, BackendError> {
        let Presence { world, rank, .. } = &*self.presence;
        let refusal = |reason| BackendError::Memory { rank: *rank, bytes, reason };
        let arena = Arc::new(Arena::reserve(bytes).map_err(refusal)?);
        if world.settle(*rank, Arc::clone(&arena)) {
            Ok(CpuMemory { arena, snapshot: SnapshotPlace::default() })
        } else {
            Err(refusal("this rank has an arena already".to_owned()))
        }
    }

    fn reserve_snapshot(
        &self,
        memory: &CpuMemory,
        bytes: usize,
    ) -> Result<Arc<dyn SnapshotMemory>, BackendError> {
        let rank = self.presence.rank;
        let refusal = |reason| crate::no_snapshot(rank, bytes, reason);
        let arena = Arc::new(Arena::reserve(bytes).map_err(refusal)?);
        let is_first = memory.snapshot.set(Arc::clone(&arena)).is_ok();
        if !is_first {
            return Err(crate::no_snapshot(rank, bytes, "this rank has one already"));
        }
        Ok(Arc::new(CpuSnapshot { rank, arena }))
    }

    fn open(
        &self,
        memory: &CpuMemory,
        lane: Lane,
        closures: Option<ComputeFactory<CpuSurface>>,
    ) -> Result<CpuStream, BackendError> {
        let CpuMemory { arena, snapshot } = memory;
        let memory = (Arc::clone(arena), Arc::clone(snapshot));
        CpuStream::open(Arc::clone(&self.presence), memory, lane, closures)
    }

    fn lane(&self, stream: &CpuStream) -> LaneId {
        stream.lane()
    }

    fn bind(&self, memory: &CpuMemory, binding: &Binding<'_>) -> Result<CpuBound, BackendError> {
        let plan = bind::bind(binding, self.mesh(), memory.arena.bytes())?;
        self.presence.world.poison.watch(Arc::<bound::BoundPlan>::downgrade(&plan));
        Ok(CpuBound { plan, epoch: 0 })
    }

    fn begin_step(&self, bound: &mut CpuBound) -> Result<(), BackendError> {
        self.presence.world.poison.check()?;
        bound.epoch += 1;
        Ok(())
    }

    fn has_cold_steps(&self) -> bool {
        false
    }

    fn warmed(&self, _bound: &mut CpuBound) {}

    fn enqueue(&self, stream: &mut CpuStream, bound: &CpuBound, task: TaskId) -> Result<(), BackendError> {
        stream.submit(bound, Action::Run(task))
    }

    fn record(&self, stream: &mut CpuStream, bound: &CpuBound, event: EventId) -> Result<(), BackendError> {
        stream.submit(bound, Action::Record(event))
    }

    fn wait(&self, stream: &mut CpuStream, bound: &CpuBound, event: EventId) -> Result<(), BackendError> {
        stream.submit(bound, Action::Wait(event))
    }

    fn begin_capture(&self, streams: &mut [CpuStream], bound: &CpuBound) -> Result<(), BackendError> {
        stream::begin_capture(streams, bound)
    }

    fn end_capture(&self, streams: &mut [CpuStream], bound: &CpuBound) -> Result<CpuGraph, BackendError> {
        stream::end_capture(streams, bound)
    }

    fn launch(
        &self,
        streams: &mut [CpuStream],
        bound: &CpuBound,
        graph: &CpuGraph,
    ) -> Result<(), BackendError> {
        stream::launch(streams, bound, graph)
    }

    fn synchronize(&self, stream: &mut CpuStream) -> Result<(), BackendError> {
        stream.synchronize()
    }

    fn take_fault(&self, stream: &mut CpuStream) -> Option<ClosureFault> {
        stream.take_fault()
    }

    fn take_diverged(&self) -> bool {
        self.presence.diverged.swap(false, Ordering::SeqCst)
    }

    fn take_inspection(&self, _bound: &CpuBound) -> Inspection {
        std::mem::take(&mut *lock(&self.presence.non_finite))
            .map_or(Inspection::Finite, |(call, weight)| Inspection::NonFinite { call, weight })
    }

    fn upload(&self, memory: &CpuMemory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.same_length(region, bytes.len())?;
        let refusal = |error: BorrowError| self.host(bytes.len(), error);
        memory.arena.write::<u8>(region).map_err(refusal)?.copy_from_slice(bytes);
        Ok(())
    }

    fn download(&self, memory: &CpuMemory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.same_length(region, bytes.len())?;
        let refusal = |error: BorrowError| self.host(bytes.len(), error);
        bytes.copy_from_slice(&memory.arena.read::<u8>(region).map_err(refusal)?);
        Ok(())
    }

    fn intervals(&self, bound: &CpuBound, into: &mut Vec<TaskInterval>) {
        into.clear();
        into.extend(bound.plan.tasks.iter().map(|task| task.times.of(bound.epoch)));
    }

    fn poison(&self, reason: &str) {
        self.presence.world.poison.set(reason);
    }

    fn abort(&self, reason: &str) {
        self.poison(reason);
    }
}
