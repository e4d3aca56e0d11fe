//! Any backend, with what is asked of it written down.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use warpweft::backend::{Backend, BackendError, ClosureFault, TaskInterval};
use warpweft::compute::ComputeFactory;
use warpweft::config::Reduce;
use warpweft::id::{EventId, LaneId, RankId, TaskId};
use warpweft::layout::{Binding, Lane, Region};
use warpweft::model::Mesh;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Step,
    Task(LaneId, TaskId),
    Record(LaneId, EventId),
    Wait(LaneId, EventId),
    Captured,
    Launch,
    Synchronize(LaneId),
}

/// A backend and its log.
pub(crate) struct Logged<B> {
    pub(crate) inner: B,
    pub(crate) log: Arc<Mutex<Vec<Asked>>>,
}

impl<B> Logged<B> {
    fn note(&self, asked: Asked) {
        self.log.lock().unwrap().push(asked);
    }
}

impl<B: Backend> Backend for Logged<B> {
    type Surface = B::Surface;
    type Memory = B::Memory;
    type Stream = B::Stream;
    type Bound = B::Bound;
    type Graph = B::Graph;

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

    fn landing_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError> {
        self.inner.landing_bytes(binding)
    }

    fn reserve(&self, bytes: usize, landing: usize) -> Result<B::Memory, BackendError> {
        self.inner.reserve(bytes, landing)
    }

    fn open(
        &self,
        memory: &B::Memory,
        lane: Lane,
        closures: Option<ComputeFactory<B::Surface>>,
    ) -> Result<B::Stream, BackendError> {
        self.inner.open(memory, lane, closures)
    }

    fn lane(&self, stream: &B::Stream) -> LaneId {
        self.inner.lane(stream)
    }

    fn bind(&self, memory: &B::Memory, binding: &Binding<'_>) -> Result<B::Bound, BackendError> {
        self.inner.bind(memory, binding)
    }

    fn begin_step(&self, bound: &mut B::Bound) -> Result<(), BackendError> {
        self.note(Asked::Step);
        self.inner.begin_step(bound)
    }

    fn enqueue(&self, stream: &mut B::Stream, bound: &B::Bound, task: TaskId) -> Result<(), BackendError> {
        self.note(Asked::Task(self.inner.lane(stream), task));
        self.inner.enqueue(stream, bound, task)
    }

    fn record(&self, stream: &mut B::Stream, bound: &B::Bound, event: EventId) -> Result<(), BackendError> {
        self.note(Asked::Record(self.inner.lane(stream), event));
        self.inner.record(stream, bound, event)
    }

    fn wait(&self, stream: &mut B::Stream, bound: &B::Bound, event: EventId) -> Result<(), BackendError> {
        self.note(Asked::Wait(self.inner.lane(stream), event));
        self.inner.wait(stream, bound, event)
    }

    fn begin_capture(&self, streams: &mut [B::Stream], bound: &B::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, bound)
    }

    fn end_capture(&self, streams: &mut [B::Stream], bound: &B::Bound) -> Result<B::Graph, BackendError> {
        self.note(Asked::Captured);
        self.inner.end_capture(streams, bound)
    }

    fn launch(
        &self,
        streams: &mut [B::Stream],
        bound: &B::Bound,
        graph: &B::Graph,
    ) -> Result<(), BackendError> {
        self.note(Asked::Launch);
        self.inner.launch(streams, bound, graph)
    }

    fn synchronize(&self, stream: &mut B::Stream) -> Result<(), BackendError> {
        self.note(Asked::Synchronize(self.inner.lane(stream)));
        self.inner.synchronize(stream)
    }

    fn take_fault(&self, stream: &mut B::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }

    fn upload(&self, memory: &B::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.upload(memory, region, bytes)
    }

    fn download(&self, memory: &B::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.inner.download(memory, region, bytes)
    }

    fn intervals(&self, bound: &B::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(bound, into);
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}
