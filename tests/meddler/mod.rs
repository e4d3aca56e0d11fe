//! A CPU backend that a test can make fail or die at a chosen moment.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use warpweft::backend::cpu::{CpuBackend, CpuOptions, CpuSurface, CpuWorld};
use warpweft::backend::{Backend, BackendError, ClosureFault, TaskInterval};
use warpweft::compute::ComputeFactory;
use warpweft::config::Reduce;
use warpweft::id::{EventId, LaneId, RankId, TaskId};
use warpweft::layout::{Binding, Lane, Region};
use warpweft::model::Mesh;

/// When a hook is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The arena is about to be reserved.
    Reserve,
    /// A task is about to be enqueued.
    Enqueue,
    /// Bytes are about to go into the arena.
    Upload,
    /// Bytes are about to come out of it.
    Download,
    /// A recording has ended.
    Recorded,
    /// The world is about to be aborted; an error swallows the abort.
    Abort,
}

/// Decides whether the backend goes on.
type Hook = Box<dyn Fn(Moment) -> Result<(), BackendError> + Send>;

/// Does something to the arena before bytes are uploaded.
type Residue = Box<dyn Fn(&CpuBackend, &<CpuBackend as Backend>::Memory) + Send>;

/// The backend of one rank, with a hook.
pub struct Meddler {
    inner: CpuBackend,
    hook: Hook,
    residue: Option<Residue>,
}

impl Meddler {
    pub fn new(
        inner: CpuBackend,
        hook: impl Fn(Moment) -> Result<(), BackendError> + Send + 'static,
    ) -> Self {
        Self { inner, hook: Box::new(hook), residue: None }
    }

    /// Leaves something in the arena whenever bytes are about to go into it.
    pub fn leaving(
        inner: CpuBackend,
        residue: impl Fn(&CpuBackend, &<CpuBackend as Backend>::Memory) + Send + 'static,
    ) -> Self {
        Self { residue: Some(Box::new(residue)), ..Self::new(inner, |_| Ok(())) }
    }
}

/// The backends of one world of `ranks` ranks.
pub fn backends(ranks: u32) -> Vec<CpuBackend> {
    let world = CpuWorld::new(Mesh::new(ranks).unwrap(), CpuOptions::default()).unwrap();
    (0..ranks).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect()
}

/// Something a test switches on while a session runs.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn on(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Backends of `ranks` ranks of which `victim` fails with its own words whenever it comes to `moment`
/// and the switch is on.
pub fn failing_at(moment: Moment, victim: RankId, ranks: u32, switch: &Switch) -> Vec<Meddler> {
    failing_at_any(&[moment], victim, ranks, switch)
}

/// The same for several moments.
pub fn failing_at_any(moments: &[Moment], victim: RankId, ranks: u32, switch: &Switch) -> Vec<Meddler> {
    let meddle = |inner: CpuBackend| {
        let (rank, switch, moments) = (inner.rank(), switch.clone(), moments.to_vec());
        Meddler::new(inner, move |now| {
            if moments.contains(&now) && rank == victim && switch.is_on() {
                return Err(BackendError::Host { rank, bytes: 0, reason: "the cable is out".into() });
            }
            Ok(())
        })
    };
    backends(ranks).into_iter().map(meddle).collect()
}

impl Backend for Meddler {
    type Surface = CpuSurface;
    type Memory = <CpuBackend as Backend>::Memory;
    type Stream = <CpuBackend as Backend>::Stream;
    type Bound = <CpuBackend as Backend>::Bound;
    type Graph = <CpuBackend as Backend>::Graph;

    fn enqueue(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        task: TaskId,
    ) -> Result<(), BackendError> {
        (self.hook)(Moment::Enqueue)?;
        self.inner.enqueue(stream, bound, task)
    }

    fn rank(&self) -> RankId {
        self.inner.rank()
    }
    fn mesh(&self) -> Mesh {
        self.inner.mesh()
    }
    fn reduce(&self) -> Reduce {
        self.inner.reduce()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn origin(&self) -> Instant {
        self.inner.origin()
    }
    fn lane(&self, stream: &Self::Stream) -> LaneId {
        self.inner.lane(stream)
    }
    fn landing_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError> {
        self.inner.landing_bytes(binding)
    }

    fn reserve(&self, bytes: usize, landing: usize) -> Result<Self::Memory, BackendError> {
        (self.hook)(Moment::Reserve)?;
        self.inner.reserve(bytes, landing)
    }
    fn open(
        &self,
        memory: &Self::Memory,
        lane: Lane,
        closures: Option<ComputeFactory<CpuSurface>>,
    ) -> Result<Self::Stream, BackendError> {
        self.inner.open(memory, lane, closures)
    }
    fn bind(&self, memory: &Self::Memory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError> {
        self.inner.bind(memory, binding)
    }
    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_step(bound)
    }
    fn record(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.inner.record(stream, bound, event)
    }
    fn wait(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.inner.wait(stream, bound, event)
    }
    fn begin_capture(&self, streams: &mut [Self::Stream], bound: &Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, bound)
    }
    fn end_capture(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
    ) -> Result<Self::Graph, BackendError> {
        let graph = self.inner.end_capture(streams, bound)?;
        (self.hook)(Moment::Recorded)?;
        Ok(graph)
    }
    fn launch(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
        graph: &Self::Graph,
    ) -> Result<(), BackendError> {
        self.inner.launch(streams, bound, graph)
    }
    fn synchronize(&self, stream: &mut Self::Stream) -> Result<(), BackendError> {
        self.inner.synchronize(stream)
    }
    fn take_fault(&self, stream: &mut Self::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }
    fn upload(&self, memory: &Self::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        (self.hook)(Moment::Upload)?;
        if let Some(residue) = &self.residue {
            residue(&self.inner, memory);
        }
        self.inner.upload(memory, region, bytes)
    }
    fn download(&self, memory: &Self::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        (self.hook)(Moment::Download)?;
        self.inner.download(memory, region, bytes)
    }
    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(bound, into);
    }
    fn abort(&self, reason: &str) {
        if (self.hook)(Moment::Abort).is_ok() {
            self.inner.abort(reason);
        }
    }
}
