//! Any backend, with a hook that is told what is asked of it.
//!
//! The one place in the tests that writes out the whole trait: what a test wants to see or to spoil is a hook.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part")]

use std::time::Instant;

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
    /// A step is about to begin.
    Step,
    /// A task is about to be enqueued.
    Enqueue,
    /// An event is about to be recorded.
    Record,
    /// A lane is about to be made to wait for an event.
    Wait,
    /// A recording has ended.
    Recorded,
    /// A recorded step is about to run.
    Launch,
    /// The host is about to wait for a lane.
    Synchronize,
    /// Bytes are about to go into the arena.
    Upload,
    /// Bytes are about to come out of it.
    Download,
    /// The world is about to be aborted; an error swallows the abort.
    Abort,
}

/// One request: when, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub moment: Moment,
    pub lane: Option<LaneId>,
    pub task: Option<TaskId>,
    pub event: Option<EventId>,
}

/// Decides whether the backend goes on.
type Hook = Box<dyn Fn(Asked) -> Result<(), BackendError> + Send>;

/// Does something to the arena before bytes are uploaded.
type Residue<B> = Box<dyn Fn(&B, &<B as Backend>::Memory) + Send>;

/// The backend of one rank, with a hook.
pub struct Wrapped<B: Backend> {
    inner: B,
    hook: Hook,
    residue: Option<Residue<B>>,
}

impl<B: Backend> Wrapped<B> {
    pub fn new(inner: B, hook: impl Fn(Asked) -> Result<(), BackendError> + Send + 'static) -> Self {
        Self { inner, hook: Box::new(hook), residue: None }
    }

    /// Leaves something in the arena whenever bytes are about to go into it.
    pub fn leaving(inner: B, residue: impl Fn(&B, &B::Memory) + Send + 'static) -> Self {
        Self { residue: Some(Box::new(residue)), ..Self::new(inner, |_| Ok(())) }
    }

    /// Asks the hook about something that belongs to no lane.
    fn ask(&self, moment: Moment) -> Result<(), BackendError> {
        (self.hook)(Asked { moment, lane: None, task: None, event: None })
    }

    /// Asks the hook about something on a lane.
    fn ask_on(
        &self,
        stream: &B::Stream,
        moment: Moment,
        task: Option<TaskId>,
        event: Option<EventId>,
    ) -> Result<(), BackendError> {
        (self.hook)(Asked { moment, lane: Some(self.inner.lane(stream)), task, event })
    }
}

impl<B: Backend> Backend for Wrapped<B> {
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
        self.ask(Moment::Reserve)?;
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
        self.ask(Moment::Step)?;
        self.inner.begin_step(bound)
    }

    fn enqueue(&self, stream: &mut B::Stream, bound: &B::Bound, task: TaskId) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Enqueue, Some(task), None)?;
        self.inner.enqueue(stream, bound, task)
    }

    fn record(&self, stream: &mut B::Stream, bound: &B::Bound, event: EventId) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Record, None, Some(event))?;
        self.inner.record(stream, bound, event)
    }

    fn wait(&self, stream: &mut B::Stream, bound: &B::Bound, event: EventId) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Wait, None, Some(event))?;
        self.inner.wait(stream, bound, event)
    }

    fn begin_capture(&self, streams: &mut [B::Stream], bound: &B::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, bound)
    }

    fn end_capture(&self, streams: &mut [B::Stream], bound: &B::Bound) -> Result<B::Graph, BackendError> {
        let graph = self.inner.end_capture(streams, bound)?;
        self.ask(Moment::Recorded)?;
        Ok(graph)
    }

    fn launch(
        &self,
        streams: &mut [B::Stream],
        bound: &B::Bound,
        graph: &B::Graph,
    ) -> Result<(), BackendError> {
        self.ask(Moment::Launch)?;
        self.inner.launch(streams, bound, graph)
    }

    fn synchronize(&self, stream: &mut B::Stream) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Synchronize, None, None)?;
        self.inner.synchronize(stream)
    }

    fn take_fault(&self, stream: &mut B::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }

    fn upload(&self, memory: &B::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.ask(Moment::Upload)?;
        if let Some(residue) = &self.residue {
            residue(&self.inner, memory);
        }
        self.inner.upload(memory, region, bytes)
    }

    fn download(&self, memory: &B::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.ask(Moment::Download)?;
        self.inner.download(memory, region, bytes)
    }

    fn intervals(&self, bound: &B::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(bound, into);
    }

    fn abort(&self, reason: &str) {
        if self.ask(Moment::Abort).is_ok() {
            self.inner.abort(reason);
        }
    }
}
