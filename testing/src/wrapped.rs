//! A wrapper around any backend, with a hook on every call.
//!
//! The one place in the tests that writes out the whole trait: what a test wants to see or to spoil is a hook.

use std::sync::Arc;
use std::time::Instant;

use warpweft_backend::{
    Backend, BackendError, ClosureFault, Inspection, Meter, SnapshotMemory, TaskInterval,
};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

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
    /// A capture has ended.
    Captured,
    /// A captured step is about to run.
    Launch,
    /// The host is about to wait for a lane.
    Synchronize,
    /// Bytes are about to go into the arena.
    Upload,
    /// Bytes are about to come out of it.
    Download,
    /// The world is about to be poisoned; an error swallows the poison.
    Poison,
    /// The world is about to be aborted; an error swallows the abort.
    Abort,
}

/// One request: when, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When.
    pub moment: Moment,
    /// Of which lane.
    pub lane: Option<LaneId>,
    /// Of which task.
    pub task: Option<TaskId>,
    /// Of which event.
    pub event: Option<EventId>,
    /// Of a reservation: the arena's.
    pub bytes: Option<usize>,
}

/// Decides whether the backend goes on.
type Hook = Box<dyn Fn(Request) -> Result<(), BackendError> + Send>;

/// Does something to the arena before bytes are uploaded.
type Residue<B> = Box<dyn Fn(&B, &<B as Backend>::Memory) + Send>;

/// What a test may go by of a bound plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Bytes of its transient region.
    pub transient: usize,
    /// Tasks.
    pub tasks: usize,
    /// Was it asked to time them?
    pub timed: bool,
}

/// Says when the tasks of a plan ran, in place of the clock.
type Times = Box<dyn Fn(Seen, &mut Vec<TaskInterval>) + Send>;

/// The backend of one rank, with a hook.
pub struct Wrapped<B: Backend> {
    inner: B,
    hook: Hook,
    residue: Option<Residue<B>>,
    times: Option<Times>,
    meter: Option<Arc<Meter>>,
    /// Has steps issued whose gradients are inspected, as a GPU does.
    issues_inspected: bool,
    bound: Arc<()>,
}

/// A bound plan that is counted.
pub struct WrappedBound<T> {
    inner: T,
    seen: Seen,
    _counted: Arc<()>,
}

impl<B: Backend> Wrapped<B> {
    /// A backend that asks `hook` of everything.
    pub fn new(inner: B, hook: impl Fn(Request) -> Result<(), BackendError> + Send + 'static) -> Self {
        let (hook, bound) = (Box::new(hook), Arc::new(()));
        Self { inner, hook, residue: None, times: None, meter: None, issues_inspected: false, bound }
    }

    /// Says of every step that its tasks ran when `times` says, in place of the clock.
    pub fn timed_by(self, times: impl Fn(Seen, &mut Vec<TaskInterval>) + Send + 'static) -> Self {
        Self { times: Some(Box::new(times)), ..self }
    }

    /// Inspects gradients in steps that are issued, and in those that must be.
    pub fn issuing_inspected(self) -> Self {
        Self { issues_inspected: true, ..self }
    }

    /// Charges to `meter`, which the hook may have as well.
    pub fn charging(self, meter: Arc<Meter>) -> Self {
        Self { meter: Some(meter), ..self }
    }

    /// Shared by this and every plan that is bound: how many are is its strong count, less one for this and
    /// one for the caller.
    pub fn bound(&self) -> Arc<()> {
        Arc::clone(&self.bound)
    }

    /// Leaves something in the arena whenever bytes are about to go into it.
    pub fn leaving(inner: B, residue: impl Fn(&B, &B::Memory) + Send + 'static) -> Self {
        Self { residue: Some(Box::new(residue)), ..Self::new(inner, |_| Ok(())) }
    }

    /// Asks the hook about something that belongs to no lane.
    fn ask(&self, moment: Moment) -> Result<(), BackendError> {
        (self.hook)(Request { moment, lane: None, task: None, event: None, bytes: None })
    }

    /// Asks the hook about something on a lane.
    fn ask_on(
        &self,
        stream: &B::Stream,
        moment: Moment,
        task: Option<TaskId>,
        event: Option<EventId>,
    ) -> Result<(), BackendError> {
        (self.hook)(Request { moment, lane: Some(self.inner.lane(stream)), task, event, bytes: None })
    }
}

impl<B: Backend> Backend for Wrapped<B> {
    type Surface = B::Surface;
    type Memory = B::Memory;
    type Stream = B::Stream;
    type Bound = WrappedBound<B::Bound>;
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

    fn receive_buffer_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError> {
        self.inner.receive_buffer_bytes(binding)
    }

    fn reserve(&self, bytes: usize, receive_buffer: usize) -> Result<B::Memory, BackendError> {
        let requested_bytes = Some(bytes);
        let moment = Moment::Reserve;
        (self.hook)(Request { moment, lane: None, task: None, event: None, bytes: requested_bytes })?;
        self.inner.reserve(bytes, receive_buffer)
    }

    fn reserve_snapshot(
        &self,
        memory: &Self::Memory,
        bytes: usize,
    ) -> Result<Arc<dyn SnapshotMemory>, BackendError> {
        self.inner.reserve_snapshot(memory, bytes)
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

    fn bind(&self, memory: &B::Memory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError> {
        let seen =
            Seen { transient: binding.arena.transient_bytes, tasks: binding.ops.len(), timed: binding.timed };
        let inner = self.inner.bind(memory, binding)?;
        Ok(WrappedBound { inner, seen, _counted: Arc::clone(&self.bound) })
    }

    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError> {
        self.ask(Moment::Step)?;
        self.inner.begin_step(&mut bound.inner)
    }

    fn has_cold_steps(&self) -> bool {
        self.inner.has_cold_steps()
    }

    fn warmed(&self, bound: &mut Self::Bound) {
        self.inner.warmed(&mut bound.inner);
    }

    fn enqueue(&self, stream: &mut B::Stream, bound: &Self::Bound, task: TaskId) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Enqueue, Some(task), None)?;
        self.inner.enqueue(stream, &bound.inner, task)
    }

    fn record(
        &self,
        stream: &mut B::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Record, None, Some(event))?;
        self.inner.record(stream, &bound.inner, event)
    }

    fn wait(&self, stream: &mut B::Stream, bound: &Self::Bound, event: EventId) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Wait, None, Some(event))?;
        self.inner.wait(stream, &bound.inner, event)
    }

    fn begin_capture(&self, streams: &mut [B::Stream], bound: &Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, &bound.inner)
    }

    fn end_capture(&self, streams: &mut [B::Stream], bound: &Self::Bound) -> Result<B::Graph, BackendError> {
        let graph = self.inner.end_capture(streams, &bound.inner)?;
        self.ask(Moment::Captured)?;
        Ok(graph)
    }

    fn launch(
        &self,
        streams: &mut [B::Stream],
        bound: &Self::Bound,
        graph: &B::Graph,
    ) -> Result<(), BackendError> {
        self.ask(Moment::Launch)?;
        self.inner.launch(streams, &bound.inner, graph)
    }

    fn synchronize(&self, stream: &mut B::Stream) -> Result<(), BackendError> {
        self.ask_on(stream, Moment::Synchronize, None, None)?;
        self.inner.synchronize(stream)
    }

    fn take_fault(&self, stream: &mut B::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }

    fn take_diverged(&self) -> bool {
        self.inner.take_diverged()
    }

    fn inspect(&self, on: bool) -> bool {
        self.inner.inspect(on) || self.issues_inspected && on
    }

    fn take_inspection(&self, bound: &Self::Bound) -> Inspection {
        self.inner.take_inspection(&bound.inner)
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

    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(&bound.inner, into);
        if let Some(times) = &self.times {
            times(bound.seen, into);
        }
    }

    fn is_checked(&self) -> bool {
        self.inner.is_checked()
    }

    fn meter(&self) -> Arc<Meter> {
        self.meter.as_ref().map_or_else(|| self.inner.meter(), Arc::clone)
    }

    fn poison(&self, reason: &str) {
        if self.ask(Moment::Poison).is_ok() {
            self.inner.poison(reason);
        }
    }

    fn abort(&self, reason: &str) {
        if self.ask(Moment::Abort).is_ok() {
            self.inner.abort(reason);
        }
    }
}
