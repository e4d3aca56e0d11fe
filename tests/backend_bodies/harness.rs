//! A harness that drives backends by hand: a small plan, one thread per rank, a time limit.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use bytemuck::Pod;
use warpweft_backend::{Backend, BackendError, SnapshotMemory, TaskInterval};
use warpweft_base::id::{
    BufferId, CallId, CommId, EventId, LaneId, MicroBatchId, RankId, SlotId, TaskId, WeightId,
};
use warpweft_format::{ElementType, Format, Orientation, Via};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{
    ALIGNMENT, ArenaLayout, Binding, Content, Lane, LaneKind, OptimizerSettings, PlaneRegions, Region,
    Residency, Settings, Slot, Weights,
};
use warpweft_plan::model::{
    BufferSpec, Call, Group, Hyperparameters, Lifetime, Mesh, Phase, Role, WeightSpec,
};
use warpweft_plan::op::{AllGather, Assemble, Chunk, Compute, GatherChunk, GatherPart, Op, Operand};
use warpweft_plan::policy::AdamMode;

use crate::device::{Device, DeviceOptions, on_every_rank};
pub(crate) use warpweft_testing::noise::noise;

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) const COMPUTE: LaneId = LaneId::new(0);
pub(crate) const QUANTIZE: LaneId = LaneId::new(1);
pub(crate) const LINK: LaneId = LaneId::new(2);

/// The lanes every rank opens.
pub(crate) const LANES: [Lane; 3] = [
    Lane { id: COMPUTE, kind: LaneKind::Compute },
    Lane { id: QUANTIZE, kind: LaneKind::Quantize },
    Lane { id: LINK, kind: LaneKind::Communicator(CommId::new(0)) },
];

/// What an executor does, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Do {
    Enqueue(LaneId, TaskId),
    Record(LaneId, EventId),
    Wait(LaneId, EventId),
}

/// A hand-made plan and the script an executor follows.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) weights: Weights,
    pub(crate) arena: ArenaLayout,
    pub(crate) calls: Vec<Call>,
    pub(crate) ops: Vec<(Op, LaneId)>,
    pub(crate) events: usize,
    pub(crate) settings: Settings,
    pub(crate) script: Vec<Do>,
    pub(crate) buffers: Vec<BufferSpec>,
}

/// A sharded weight.
pub(crate) fn sharded(rows: usize, cols: usize, format: Format) -> WeightSpec {
    WeightSpec::sharded("w", rows, cols, format)
}

/// What optimizers go by here, but for the learning rate.
pub(crate) const BY: Hyperparameters =
    Hyperparameters { learning_rate: 0.0, weight_decay: 0.1, beta1: 0.9, beta2: 0.999 };

#[allow(dead_code, reason = "not every program has closures or swaps tasks")]
impl Plan {
    pub(crate) fn new(ranks: u32, weights: &[WeightSpec]) -> Self {
        Self::over(Mesh::new(ranks).unwrap(), weights)
    }

    pub(crate) fn over(mesh: Mesh, weights: &[WeightSpec]) -> Self {
        Self {
            weights: Weights::new(weights, mesh),
            arena: ArenaLayout::default(),
            calls: Vec::new(),
            ops: Vec::new(),
            events: 0,
            settings: Settings {
                via: Via::None,
                optimizer: OptimizerSettings {
                    mode: AdamMode::AdamW,
                    epsilon: 1e-8,
                    bias_correction: true,
                    max_norm: 0.0,
                },
            },
            script: Vec::new(),
            buffers: Vec::new(),
        }
    }

    fn place(&mut self, name: &str, content: Content, residency: Residency) -> SlotId {
        let buffers = &self.buffers;
        let bytes = content.bytes(&self.weights, |buffer| buffers[buffer.index()].bytes());
        let offset = self.arena.bytes();
        let region = Region { offset, bytes };
        self.arena.transient_bytes += bytes.next_multiple_of(ALIGNMENT);
        self.arena.slots.push(Slot { name: name.into(), content, residency, region });
        SlotId::at(self.arena.slots.len() - 1)
    }

    pub(crate) fn resident(&mut self, name: &str, content: Content) -> SlotId {
        self.place(name, content, Residency::Resident)
    }

    pub(crate) fn transient(&mut self, name: &str, content: Content) -> SlotId {
        self.place(name, content, Residency::Transient)
    }

    /// A buffer of f32 values.
    pub(crate) fn buffer(&mut self, name: &str, elements: usize, residency: Residency) -> (BufferId, SlotId) {
        let (element, role, lifetime) = (ElementType::F32, Role::Internal, Lifetime::Step);
        self.buffers.push(BufferSpec { name: name.into(), elements, element, role, lifetime });
        let id = BufferId::at(self.buffers.len() - 1);
        (id, self.place(name, Content::Buffer(id), residency))
    }

    pub(crate) fn op(&mut self, lane: LaneId, op: Op) -> TaskId {
        let id = TaskId::at(self.ops.len());
        self.ops.push((op, lane));
        self.script.push(Do::Enqueue(lane, id));
        id
    }

    /// A call that accesses buffers alone.
    pub(crate) fn call(&mut self, name: &str, fault: SlotId, operands: Vec<Operand>) -> TaskId {
        let call = CallId::at(self.calls.len());
        self.calls.push(Call {
            name: name.into(),
            micro_batch: MicroBatchId::default(),
            phase: Phase::Forward,
            uses: Vec::new(),
            gradients: Vec::new(),
            buffers: Vec::new(),
            cost: Vec::new(),
            dynamic: false,
            collective: None,
        });
        self.op(COMPUTE, Op::Compute(Compute { call, fault, operands }))
    }

    /// Gathers weights on the link and makes their planes whole on the compute lane.
    pub(crate) fn gather(&mut self, parts: &[GatherPart]) {
        self.op(LINK, Op::AllGather(AllGather { group: Group::Shard, parts: parts.to_vec() }));
        self.fence(LINK, COMPUTE);
        self.op(COMPUTE, Op::Assemble(Assemble { parts: parts.to_vec() }));
    }

    /// As [`Plan::gather`] of one weight, so many bytes of every shard at a time.
    pub(crate) fn gather_in_chunks(&mut self, part: GatherPart, bytes: usize) {
        let shard = self.weights.layout(part.weight).shard_planes(part.orientation);
        let PlaneRegions { data, scale } = PlaneRegions::within(self.region(part.from), &shard);
        let whole = data.bytes + scale.bytes;
        for begin in (0..whole).step_by(bytes) {
            let chunk = Chunk { begin, end: whole.min(begin + bytes) };
            self.op(LINK, Op::GatherChunk(GatherChunk { group: Group::Shard, part, chunk }));
        }
        self.fence(LINK, COMPUTE);
        self.op(COMPUTE, Op::Assemble(Assemble { parts: vec![part] }));
    }

    /// `to` waits for everything enqueued on `from` so far.
    pub(crate) fn fence(&mut self, from: LaneId, to: LaneId) -> EventId {
        let event = EventId::at(self.events);
        self.events += 1;
        self.script.extend([Do::Record(from, event), Do::Wait(to, event)]);
        event
    }

    pub(crate) fn region(&self, slot: SlotId) -> Region {
        self.arena.region(slot)
    }

    /// Swaps two tasks in the ops and leaves the script alone: a plan of another order.
    pub(crate) fn with_swapped_ops(mut self, one: TaskId, two: TaskId) -> Self {
        self.ops.swap(one.index(), two.index());
        self
    }
}

/// One rank at work.
pub(crate) struct Rank<B: Backend> {
    pub(crate) streams: Vec<B::Stream>,
    pub(crate) bound: B::Bound,
    pub(crate) memory: B::Memory,
    pub(crate) backend: B,
    pub(crate) plan: Arc<Plan>,
    /// Where copies go, as large as the arena, if the plan makes some.
    pub(crate) snapshot: Option<Arc<dyn SnapshotMemory>>,
}

impl<B: Backend> Rank<B> {
    pub(crate) fn start(
        backend: B,
        plan: Arc<Plan>,
        closures: Option<ComputeFactory<B::Surface>>,
    ) -> Result<Self, BackendError> {
        let binding = Binding {
            rank: backend.rank(),
            program: "bodies",
            arena: &plan.arena,
            weights: &plan.weights,
            buffers: &plan.buffers,
            calls: &plan.calls,
            micro_batches: 1,
            ops: &plan.ops,
            events: plan.events,
            settings: plan.settings,
            timed: false,
            spoiled: false,
        };
        let memory = backend.reserve(plan.arena.bytes(), backend.receive_buffer_bytes(&binding)?)?;
        let mut streams = Vec::new();
        for lane in LANES {
            let closures = closures.clone().filter(|_| lane.kind == LaneKind::Compute);
            streams.push(backend.open(&memory, lane, closures)?);
        }
        let copies = plan.ops.iter().any(|(op, _)| matches!(op, Op::Snapshot(_)));
        let snapshot = copies.then(|| backend.reserve_snapshot(&memory, plan.arena.bytes())).transpose()?;
        let bound = backend.bind(&memory, &binding)?;
        Ok(Self { streams, bound, memory, backend, plan, snapshot })
    }

    pub(crate) fn number(&self) -> usize {
        self.backend.rank().index()
    }

    /// Hands the backend one entry of a script.
    pub(crate) fn obey(&mut self, entry: Do) -> Result<(), BackendError> {
        let Self { streams, bound, backend, .. } = self;
        match entry {
            Do::Enqueue(lane, task) => backend.enqueue(&mut streams[lane.index()], bound, task),
            Do::Record(lane, event) => backend.record(&mut streams[lane.index()], bound, event),
            Do::Wait(lane, event) => backend.wait(&mut streams[lane.index()], bound, event),
        }
    }

    pub(crate) fn begin(&mut self) -> Result<(), BackendError> {
        self.backend.begin_step(&mut self.bound)
    }

    /// Enqueues the plan's script.
    pub(crate) fn enqueue_all(&mut self) -> Result<(), BackendError> {
        let plan = Arc::clone(&self.plan);
        plan.script.iter().try_for_each(|entry| self.obey(*entry))
    }

    pub(crate) fn synchronize(&mut self) -> Result<(), BackendError> {
        let Self { streams, backend, .. } = self;
        let all: Vec<_> = streams.iter_mut().map(|stream| backend.synchronize(stream)).collect();
        all.into_iter().collect()
    }

    /// One eager step.
    pub(crate) fn step(&mut self) -> Result<(), BackendError> {
        self.begin()?;
        self.enqueue_all()?;
        self.synchronize()
    }

    /// Captures the plan's script.
    pub(crate) fn capture_graph(&mut self) -> Result<B::Graph, BackendError> {
        let plan = Arc::clone(&self.plan);
        self.begin()?;
        self.capture_segment(&plan.script)
    }

    /// Captures a part of a step.
    pub(crate) fn capture_segment(&mut self, script: &[Do]) -> Result<B::Graph, BackendError> {
        self.backend.begin_capture(&mut self.streams, &self.bound)?;
        script.iter().try_for_each(|entry| self.obey(*entry))?;
        self.backend.end_capture(&mut self.streams, &self.bound)
    }

    /// Launches a part of a step.
    pub(crate) fn launch(&mut self, graph: &B::Graph) -> Result<(), BackendError> {
        self.backend.launch(&mut self.streams, &self.bound, graph)
    }

    /// One captured step.
    pub(crate) fn replay(&mut self, graph: &B::Graph) -> Result<(), BackendError> {
        self.begin()?;
        self.launch(graph)?;
        self.synchronize()
    }

    pub(crate) fn put<T: Pod>(&self, slot: SlotId, values: &[T]) {
        let region = self.plan.region(slot).part(0, size_of_val(values)).unwrap();
        self.backend.upload(&self.memory, region, bytemuck::cast_slice(values)).unwrap();
    }

    pub(crate) fn get<T: Pod>(&self, slot: SlotId) -> Vec<T> {
        let region = self.plan.region(slot);
        let mut values = vec![T::zeroed(); region.bytes / size_of::<T>()];
        self.backend.download(&self.memory, region, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }

    pub(crate) fn intervals(&self) -> Vec<TaskInterval> {
        let mut intervals = Vec::new();
        self.backend.intervals(&self.bound, &mut intervals);
        intervals
    }
}

/// Fails loudly if `work` takes longer than any test may: a hang is a failure, not a stuck suite.
pub(crate) fn within_limit<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let result = Arc::new(Mutex::new(None));
    let place = Arc::clone(&result);
    in_time(Box::new(move || {
        let made = work();
        *place.lock().unwrap() = Some(made);
    }));
    let made = result.lock().unwrap().take();
    made.unwrap()
}

/// Of any work alike, so that threads and channels are not compiled anew for every test.
fn in_time(work: Box<dyn FnOnce() + Send>) {
    let (done, end) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        done.send(())
    });
    match end.recv_timeout(LIMIT) {
        Ok(()) => worker.join().unwrap().unwrap(),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("still running after {LIMIT:?}: somebody hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("a worker that ends well has said so"),
        },
    }
}

/// What every rank runs, whatever comes of it: so that a device starts its ranks by code that is not compiled anew for
/// every test.
pub(crate) type RankWork = Box<dyn Fn(Device, Arc<Plan>) + Send + Sync>;

/// What `work` makes on each of `ranks` ranks, which `run` sees to.
pub(crate) fn made_by_ranks<R, F>(ranks: u32, work: F, run: impl FnOnce(RankWork)) -> Vec<R>
where
    R: Send + 'static,
    F: Fn(Device, Arc<Plan>) -> R + Send + Sync + 'static,
{
    let made = Made::new(ranks);
    let places = made.clone();
    run(Box::new(move |backend, plan| {
        let rank = backend.rank();
        places.put(rank, work(backend, plan));
    }));
    made.take()
}

/// A place for what each rank makes.
struct Made<R>(Arc<Mutex<Vec<Option<R>>>>);

impl<R> Made<R> {
    fn new(ranks: u32) -> Self {
        Self(Arc::new(Mutex::new((0..ranks).map(|_| None).collect())))
    }

    fn put(&self, rank: RankId, made: R) {
        self.0.lock().unwrap()[rank.index()] = Some(made);
    }

    fn take(&self) -> Vec<R> {
        self.0.lock().unwrap().drain(..).map(Option::unwrap).collect()
    }
}

impl<R> Clone for Made<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Runs `work` on every rank of a world of its own, each on its thread, with memory, lanes and plan ready and no
/// closures.
pub(crate) fn run<R, F>(plan: Plan, work: F) -> Vec<R>
where
    R: Send + 'static,
    F: Fn(&mut Rank<Device>) -> R + Send + Sync + 'static,
{
    on_every_rank(plan, DeviceOptions::default(), move |backend, plan| {
        work(&mut Rank::start(backend, plan, None).unwrap())
    })
}

pub(crate) const W: WeightId = WeightId::new(0);
pub(crate) const ROWWISE: Orientation = Orientation::Rowwise;
