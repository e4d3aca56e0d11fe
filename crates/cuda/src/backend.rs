//! One rank of a [`super::CudaWorld`], as the executor drives it.

mod reserved;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::bind::bound::CudaBound;
use super::bind::lane::CudaStream;
use super::bind::{Binder, bind};
use super::device::context::Context;
use super::device::memory::DeviceMemory;
use super::device::pinned::PinnedSnapshot;
use super::device::stream::{Priority, Stream};
use super::failure::CudaFailure;
use super::graph::capture::{self, CapturedGraphs, CudaGraph};
use super::graph::keep_alive::KeepAlive;
use super::kernels::Kernels;
use super::shutdown::progress::Progress;
use super::shutdown::release::Release;
use super::shutdown::watchdog;
use super::surface::CudaSurface;
use super::timing::Timeline;
use super::timing::task_events::TaskEvents;
use super::transport::communicator::Communicator;
use super::transport::lane_communicators::LaneCommunicators;
use super::transport::receive_buffers::ReceiveBuffers;
use super::world::World;
use warpweft_backend::bell::lock;
use warpweft_backend::closures::Closures;
use warpweft_backend::local::resolve;
use warpweft_backend::{
    Activity, Backend, BackendError, ClosureFault, Inspection, Meter, SnapshotMemory, TaskInterval,
    no_snapshot, within,
};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::{ComputeFactory, Seat};
use warpweft_plan::layout::{Binding, Lane, LaneKind, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// How long a failed transfer waits for the news of which rank ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// One rank of a [`super::CudaWorld`]: one GPU.
#[derive(Debug)]
pub struct CudaBackend {
    world: Arc<World>,
    rank: RankId,
    context: Arc<Context>,
    kernels: Arc<Kernels>,
    /// Copies between host and device at a step boundary.
    transfers: Stream,
    /// What this rank's calls are charged to.
    meter: Arc<Meter>,
    progress: Progress,
    /// The events of the plan under way, if its tasks are timed by events.
    task_events: Mutex<Weak<TaskEvents>>,
    lanes: Mutex<BTreeMap<LaneId, Option<LaneCommunicators>>>,
    captures: CapturedGraphs,
    release: Release,
}

/// The arena of one rank, followed by the words with which ranks signal each other and by the room for what
/// peers send.
#[derive(Debug)]
pub struct CudaMemory {
    memory: Arc<DeviceMemory>,
    arena_bytes: usize,
    receive_buffer_bytes: usize,
    /// From the first save in the background on.
    snapshot: OnceLock<Arc<PinnedSnapshot>>,
}

impl CudaBackend {
    pub(super) fn new(world: Arc<World>, rank: RankId, kernels: Kernels) -> Result<Self, CudaFailure> {
        let missing = || CudaFailure::Refused(format!("{rank} has no device"));
        let context = Arc::clone(world.context(rank).ok_or_else(missing)?);
        context.make_current()?;
        let kernels = Arc::new(kernels);
        let meter = Arc::<Meter>::default();
        let transfers = Stream::metered(Arc::clone(&context), Priority::Least, Arc::clone(&meter))?;
        let progress = Progress::new(&context)?;
        let (task_events, lanes) = (Mutex::default(), Mutex::default());
        let captures = CapturedGraphs::new(KeepAlive::new(Arc::clone(&context)));
        let release = Release::new(world.signals());
        let backend = Self {
            world,
            rank,
            context,
            kernels,
            transfers,
            meter,
            progress,
            task_events,
            lanes,
            captures,
            release,
        };
        Ok(backend)
    }

    /// What a failure means here: in a world that has ended it is an echo of that end.
    fn failed(&self, doing: &'static str) -> impl Fn(CudaFailure) -> BackendError {
        let rank = self.rank;
        let device = move |failure: CudaFailure| BackendError::Device {
            rank,
            doing: doing.to_owned(),
            reason: failure.to_string(),
        };
        move |failure| self.world.check().err().unwrap_or_else(|| device(failure))
    }

    fn enqueued<T>(
        &self,
        bound: &CudaBound,
        task: TaskId,
        outcome: Result<T, CudaFailure>,
    ) -> Result<T, BackendError> {
        let rank = self.rank;
        outcome.map_err(|failure| {
            // NCCL may know earlier than the rendezvous that a peer is gone, but not which.
            if matches!(failure, CudaFailure::Nccl { .. }) {
                self.world.await_end(PATIENCE);
            }
            let op = bound.task(task).map_or("unknown", |task| task.op);
            let cause = || BackendError::Task { rank, task, op, reason: failure.to_string() };
            self.world.check().err().unwrap_or_else(cause)
        })
    }

    fn range(&self, memory: &CudaMemory, region: Region, bytes: usize) -> Result<(), BackendError> {
        let refusal = |reason| BackendError::Host { rank: self.rank, bytes, reason };
        if region.bytes != bytes {
            return Err(refusal(format!("the region has {} bytes", region.bytes)));
        }
        let end = region.offset.checked_add(region.bytes);
        if end.is_none_or(|end| end > memory.arena_bytes) {
            return Err(refusal(format!(
                "the region ends outside of the arena of {} bytes",
                memory.arena_bytes
            )));
        }
        Ok(())
    }

    fn start_capture(&self, streams: &mut [CudaStream]) -> Result<(), CudaFailure> {
        self.context.make_current()?;
        self.world.can_capture()?;
        capture::begin(streams)?;
        self.captures.begin();
        Ok(())
    }

    /// Ends every wait for a peer, in a world that has ended.
    fn end_waits(&self) {
        self.release.begin(&self.world, self.rank, &self.transfers, &self.communicators());
    }

    /// The communicators of all lanes, some of them several times.
    fn communicators(&self) -> Vec<Arc<Communicator>> {
        lock(&self.lanes).values().flatten().flat_map(LaneCommunicators::opened).cloned().collect()
    }
}

impl Drop for CudaBackend {
    fn drop(&mut self) {
        if self.context.is_abandoned() {
            // Unloading code would wait too.
            std::mem::forget(Arc::clone(&self.kernels));
        }
        self.world.depart(self.rank);
    }
}

impl Backend for CudaBackend {
    type Surface = CudaSurface;
    type Memory = CudaMemory;
    type Stream = CudaStream;
    type Bound = CudaBound;
    type Graph = CudaGraph;

    fn rank(&self) -> RankId {
        self.rank
    }

    fn mesh(&self) -> Mesh {
        self.world.mesh
    }

    fn reduce(&self) -> Reduce {
        self.world.options.reduce
    }

    fn describe(&self) -> String {
        self.world.describe(&self.context.name())
    }

    fn origin(&self) -> Instant {
        self.world.clock.origin()
    }

    fn receive_buffer_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError> {
        within(binding, self.world.mesh)?;
        let ops = resolve(binding, binding.arena.bytes())?;
        let hosts = |group| self.world.team(self.rank, group).hosts();
        Ok(ReceiveBuffers::of(binding, &ops, hosts).bytes())
    }

    fn reserve(&self, bytes: usize, receive_buffer: usize) -> Result<CudaMemory, BackendError> {
        let rank = self.rank;
        self.reserve_zeroed(bytes, receive_buffer).map_err(|failure| BackendError::Memory {
            rank,
            bytes,
            reason: failure.to_string(),
        })
    }

    fn reserve_snapshot(
        &self,
        memory: &CudaMemory,
        bytes: usize,
    ) -> Result<Arc<dyn SnapshotMemory>, BackendError> {
        let refusal =
            |reason| self.world.check().err().unwrap_or_else(|| no_snapshot(self.rank, bytes, reason));
        let pinned = PinnedSnapshot::zeroed(&self.context, self.rank, bytes);
        let pinned = Arc::new(pinned.map_err(|failure| refusal(failure.to_string()))?);
        let is_first = memory.snapshot.set(Arc::clone(&pinned)).is_ok();
        if is_first { Ok(pinned) } else { Err(refusal("this rank has one already".to_owned())) }
    }

    fn open(
        &self,
        memory: &CudaMemory,
        lane: Lane,
        closures: Option<ComputeFactory<CudaSurface>>,
    ) -> Result<CudaStream, BackendError> {
        let refusal = |reason| {
            let cause = || BackendError::Lane { rank: self.rank, lane: lane.id, reason };
            self.world.check().err().unwrap_or_else(cause)
        };
        self.context.make_current().map_err(|failure| refusal(failure.to_string()))?;
        let seat = Seat::new(self.rank, self.context.ordinal());
        let closures = Closures::make(closures, seat).map_err(refusal)?;
        self.open_lane(memory, lane, closures).map_err(|failure| refusal(failure.to_string()))
    }

    fn lane(&self, stream: &CudaStream) -> LaneId {
        stream.lane()
    }

    fn bind(&self, memory: &CudaMemory, binding: &Binding<'_>) -> Result<CudaBound, BackendError> {
        within(binding, self.world.mesh)?;
        self.context.make_current().map_err(self.failed("binding a plan"))?;
        let homes = self.world.homes(self.rank).map_err(self.failed("meeting the other ranks"))?;
        let lanes = lock(&self.lanes).clone();
        let binder = Binder {
            world: &self.world,
            context: &self.context,
            kernels: &self.kernels,
            homes: &homes,
            lanes: &lanes,
            progress: &self.progress,
            arena: memory.memory.address(),
            snapshot: memory.snapshot.get(),
        };
        let bound = bind(&binder, binding, (memory.arena_bytes, memory.receive_buffer_bytes))
            .inspect_err(|error| drop(self.world.poison(error.to_string())))?;
        // Loading code and allocating may wait for a device, hence for a rank that waits on it: no rank steps
        // before all have bound.
        self.world.gather(self.rank).map_err(self.failed("meeting the other ranks"))?;
        Ok(bound)
    }

    fn begin_step(&self, bound: &mut CudaBound) -> Result<(), BackendError> {
        self.world.check()?;
        self.transfers.make_current().map_err(self.failed("beginning a step"))?;
        self.progress.begin(&bound.script, &bound.counts);
        *lock(&self.task_events) = bound.timeline.as_ref().map_or_else(Weak::new, Timeline::events);
        match &mut bound.timeline {
            None => Ok(()),
            Some(timeline) => {
                timeline.begin_step(&self.transfers, &self.world).map_err(self.failed("beginning a step"))
            }
        }
    }

    fn has_cold_steps(&self) -> bool {
        true
    }

    fn warmed(&self, bound: &mut CudaBound) {
        bound.is_cold = false;
    }

    fn enqueue(&self, stream: &mut CudaStream, bound: &CudaBound, task: TaskId) -> Result<(), BackendError> {
        self.world.check()?;
        let meets = bound.is_cold && stream.communicates() && !stream.captures;
        if meets {
            let met = self.meter.within(Activity::Waiting, || self.world.gather(self.rank));
            self.enqueued(bound, task, met)?;
        }
        // Cold steps inspect too, so that no kernel is first needed, and loaded, in a later one.
        let inspects = (bound.is_cold || self.progress.inspects()) && !stream.captures;
        if self.enqueued(bound, task, stream.enqueue(bound, task, inspects))? {
            self.progress.inspected();
        }
        if meets { self.meter.within(Activity::Waiting, || self.synchronize(stream)) } else { Ok(()) }
    }

    fn record(&self, stream: &mut CudaStream, bound: &CudaBound, event: EventId) -> Result<(), BackendError> {
        stream.record(bound, event).map_err(self.failed("recording an event"))
    }

    fn wait(&self, stream: &mut CudaStream, bound: &CudaBound, event: EventId) -> Result<(), BackendError> {
        stream.wait(bound, event).map_err(self.failed("waiting for an event"))
    }

    fn begin_capture(&self, streams: &mut [CudaStream], bound: &CudaBound) -> Result<(), BackendError> {
        bound.timeline.iter().for_each(Timeline::start_capture);
        self.start_capture(streams).map_err(self.failed("capturing a step"))
    }

    fn end_capture(&self, streams: &mut [CudaStream], _: &CudaBound) -> Result<CudaGraph, BackendError> {
        let graph = self.captures.end_one(capture::end(streams), self.communicators());
        graph.map_err(self.failed("capturing a step"))
    }

    fn launch(
        &self,
        streams: &mut [CudaStream],
        bound: &CudaBound,
        graph: &CudaGraph,
    ) -> Result<(), BackendError> {
        self.world.check()?;
        bound.timeline.iter().for_each(Timeline::launched);
        let refusal = || CudaFailure::Refused("there is no lane to launch on".to_owned());
        let first = streams.first().ok_or_else(refusal).map_err(self.failed("launching a step"))?;
        graph.launch(&first.stream).map_err(self.failed("launching a step"))
    }

    fn synchronize(&self, stream: &mut CudaStream) -> Result<(), BackendError> {
        let begun = Instant::now();
        let events = lock(&self.task_events).upgrade();
        let meanwhile = || events.as_ref().is_some_and(|events| events.read_some());
        let Self { world, rank, progress, .. } = self;
        watchdog::wait(world, *rank, stream, progress, meanwhile, || self.end_waits())?;
        stream.usual_wait = begun.elapsed();
        Ok(())
    }

    fn take_fault(&self, stream: &mut CudaStream) -> Option<ClosureFault> {
        // Where the step's beginning is recorded, nothing else tells the host so.
        stream.faulted = false;
        let fault = stream.fault.take();
        // Closures run while they are enqueued, so counts that are too large are of a call before one that failed; but
        // a panic is the end of the session's closures, whatever came before.
        let computes = stream.lane.kind == LaneKind::Compute;
        let overflow = if computes { self.progress.take_overflow() } else { None };
        match (overflow, fault) {
            (_, Some(fault)) if fault.panicked => Some(fault),
            (overflow, fault) => overflow.or(fault),
        }
    }

    fn take_diverged(&self) -> bool {
        self.progress.take_diverged()
    }

    fn inspect(&self, on: bool) -> bool {
        self.progress.inspect(on);
        on
    }

    fn take_inspection(&self, bound: &CudaBound) -> Inspection {
        self.progress.take_inspection(&bound.gradients)
    }

    fn upload(&self, memory: &CudaMemory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.range(memory, region, bytes.len())?;
        let to = memory.memory.address().plus(region.offset);
        self.transfers.upload(bytes, to).map_err(self.failed("copying to the device"))
    }

    fn download(&self, memory: &CudaMemory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.range(memory, region, bytes.len())?;
        let from = memory.memory.address().plus(region.offset);
        self.transfers.download(from, bytes).map_err(self.failed("copying from the device"))
    }

    fn intervals(&self, bound: &CudaBound, into: &mut Vec<TaskInterval>) {
        into.clear();
        if let Some(timeline) = &bound.timeline {
            timeline.intervals(&self.world, into);
        }
    }

    fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    fn poison(&self, reason: &str) {
        drop(self.world.poison(reason));
    }

    fn abort(&self, reason: &str) {
        self.poison(reason);
        // The lanes are not held while NCCL is waited for.
        let communicators = self.communicators();
        // Waits end first. Captures are taken away while NCCL aborts, which waits until none of its transfers
        // is left.
        self.end_waits();
        self.captures.end();
        // No capture of an abandoned GPU is given back, so aborts may not end; waiting for them would show
        // nothing new.
        if !self.context.is_abandoned() && !Communicator::abort(communicators.iter().map(AsRef::as_ref)) {
            self.world.abandon();
        }
    }
}
