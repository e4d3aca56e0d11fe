//! A validation layer around any backend.
//!
//! Laws:
//! - **BK-1** What the executor does is judged by what it does: the order of a step is rebuilt from enqueue,
//!   record and wait alone, never from the plan's fences. `verify` judges plans; this judges the code that
//!   runs them.
//! - It is deterministic: a missing order is reported whether or not the lanes happened to collide.
//! - A hazard is refused before it reaches the backend.
//! - Capturing is checked like running. A launch repeats what was checked, as if all of it were enqueued then
//!   between two joins of all lanes with the first. So the parts of a step are judged together, as one step.
//! - **PL-7** A capture ends on the lanes it began on, or a fork would never join. It holds every task of
//!   the plan, or each replay would leave one out. Nothing else happens while it is made, because that would
//!   happen once and in no replay. Where the plan has dynamic calls, a capture is a segment and holds none
//!   of them. Whatever a segment waits for is in it. Segments and calls reach each lane one after the other,
//!   without a gap, up to its end.
//!
//! Steps are ordered by their edge; what happens in one is not held against another.
//!
//! A session wraps every backend, and the layer lies still unless it is to check: so a rank's code is compiled once for
//! a backend, checked or not. A layer that lies still costs a branch.

mod ledger;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use self::ledger::Ledger;
use super::{Backend, BackendError, ClosureFault, Inspection, Meter, SnapshotMemory, TaskInterval};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// A backend that refuses accesses that nothing orders.
#[derive(Debug)]
pub struct Checked<B> {
    inner: B,
    /// Whether it does.
    is_on: bool,
    /// Whether something is being captured.
    captures: AtomicBool,
}

/// A bound plan, and what has been enqueued of it in this step.
#[derive(Debug)]
pub struct CheckedBound<T> {
    inner: T,
    /// Where the layer checks.
    ledger: Option<Mutex<Ledger>>,
}

/// A capture, what is in it, and the lanes it leaves open.
#[derive(Debug)]
pub struct CheckedGraph<T> {
    inner: T,
    tasks: Vec<TaskId>,
    unjoined: Vec<LaneId>,
}

impl<T> CheckedGraph<T> {
    /// Lanes whose work the first lane does not wait for before the capture ends. A device that captures
    /// forks and joins refuses such a graph; backends join these lanes themselves.
    #[must_use]
    pub fn unjoined(&self) -> &[LaneId] {
        &self.unjoined
    }
}

impl<B: Backend> Checked<B> {
    /// Puts the layer around `inner`.
    #[must_use]
    pub fn new(inner: B) -> Self {
        Self::when(true, inner)
    }

    /// Puts the layer around `inner`, to check if `is_on` says so.
    #[must_use]
    pub fn when(is_on: bool, inner: B) -> Self {
        Self { inner, is_on, captures: AtomicBool::new(false) }
    }

    /// PL-7: refuses what no replay would repeat.
    fn outside_of_captures(&self, what: &str) -> Result<(), BackendError> {
        if !self.captures.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.judge(Err(format!(
            "the host {what} while a step is captured; it would happen this once and in no replay, so do it before the capture \
             or after it (PL-7)"
        )))
    }

    /// Turns the ledger's refusal into an error of this rank.
    fn judge<T>(&self, verdict: Result<T, String>) -> Result<T, BackendError> {
        verdict.map_err(|hazard| BackendError::Hazard { rank: self.inner.rank(), hazard })
    }
}

impl<T> CheckedBound<T> {
    fn ledger(&self) -> Option<MutexGuard<'_, Ledger>> {
        let ledger = self.ledger.as_ref()?;
        Some(ledger.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<B: Backend> Backend for Checked<B> {
    type Surface = B::Surface;
    type Memory = B::Memory;
    type Stream = B::Stream;
    type Bound = CheckedBound<B::Bound>;
    type Graph = CheckedGraph<B::Graph>;

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
        let inner = self.inner.describe();
        if self.is_on { format!("{inner}, checked") } else { inner }
    }

    fn origin(&self) -> Instant {
        self.inner.origin()
    }

    fn receive_buffer_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError> {
        self.inner.receive_buffer_bytes(binding)
    }

    fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), BackendError> {
        self.inner.admit(ranks, lanes, bytes)
    }

    fn reserve(&self, bytes: usize, receive_buffer: usize) -> Result<Self::Memory, BackendError> {
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
        memory: &Self::Memory,
        lane: Lane,
        closures: Option<ComputeFactory<Self::Surface>>,
    ) -> Result<Self::Stream, BackendError> {
        self.inner.open(memory, lane, closures)
    }

    fn lane(&self, stream: &Self::Stream) -> LaneId {
        self.inner.lane(stream)
    }

    fn bind(&self, memory: &Self::Memory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError> {
        let spoiled = self.is_on || binding.spoiled;
        let inner = self.inner.bind(memory, &Binding { spoiled, ..*binding })?;
        Ok(CheckedBound { inner, ledger: self.is_on.then(|| Mutex::new(Ledger::new(binding))) })
    }

    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError> {
        self.outside_of_captures("begins a step")?;
        if let Some(ledger) = bound.ledger() {
            self.judge(ledger.end())?;
        }
        self.inner.begin_step(&mut bound.inner)?;
        if let Some(mut ledger) = bound.ledger() {
            ledger.begin();
        }
        Ok(())
    }

    fn has_cold_steps(&self) -> bool {
        self.inner.has_cold_steps()
    }

    fn warmed(&self, bound: &mut Self::Bound) {
        self.inner.warmed(&mut bound.inner);
    }

    fn enqueue(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        task: TaskId,
    ) -> Result<(), BackendError> {
        if let Some(mut ledger) = bound.ledger() {
            self.judge(ledger.enqueue(self.inner.lane(stream), task))?;
        }
        self.inner.enqueue(stream, &bound.inner, task)
    }

    fn record(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        if let Some(mut ledger) = bound.ledger() {
            self.judge(ledger.record(self.inner.lane(stream), event))?;
        }
        self.inner.record(stream, &bound.inner, event)
    }

    fn wait(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError> {
        if let Some(mut ledger) = bound.ledger() {
            self.judge(ledger.wait(self.inner.lane(stream), event))?;
        }
        self.inner.wait(stream, &bound.inner, event)
    }

    fn begin_capture(&self, streams: &mut [Self::Stream], bound: &Self::Bound) -> Result<(), BackendError> {
        self.inner.begin_capture(streams, &bound.inner)?;
        if let Some(mut ledger) = bound.ledger() {
            self.captures.store(true, Ordering::SeqCst);
            ledger.fork(streams.iter().map(|stream| self.inner.lane(stream)).collect());
        }
        Ok(())
    }

    fn end_capture(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
    ) -> Result<Self::Graph, BackendError> {
        let Some(mut ledger) = bound.ledger() else {
            let inner = self.inner.end_capture(streams, &bound.inner)?;
            return Ok(CheckedGraph { inner, tasks: Vec::new(), unjoined: Vec::new() });
        };
        let lanes: Vec<LaneId> = streams.iter().map(|stream| self.inner.lane(stream)).collect();
        let joined = ledger.join(&lanes);
        let unjoined = lanes.first().map_or_else(Vec::new, |first| ledger.unjoined(*first));
        // Nothing has run: whatever comes next starts from the step boundary again.
        ledger.begin();
        self.captures.store(false, Ordering::SeqCst);
        // The capture ends whatever is wrong with it.
        let inner = self.inner.end_capture(streams, &bound.inner);
        let tasks = self.judge(joined)?;
        Ok(CheckedGraph { inner: inner?, tasks, unjoined })
    }

    fn launch(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
        graph: &Self::Graph,
    ) -> Result<(), BackendError> {
        self.outside_of_captures("launches a captured step")?;
        if let (Some(first), Some(mut ledger)) = (streams.first(), bound.ledger()) {
            self.judge(ledger.launch(self.inner.lane(first), &graph.tasks))?;
        }
        self.inner.launch(streams, &bound.inner, &graph.inner)
    }

    fn synchronize(&self, stream: &mut Self::Stream) -> Result<(), BackendError> {
        self.outside_of_captures("waits for a lane")?;
        self.inner.synchronize(stream)
    }

    fn take_fault(&self, stream: &mut Self::Stream) -> Option<ClosureFault> {
        self.inner.take_fault(stream)
    }

    fn take_diverged(&self) -> bool {
        self.inner.take_diverged()
    }

    fn inspect(&self, on: bool) -> bool {
        self.inner.inspect(on)
    }

    fn take_inspection(&self, bound: &Self::Bound) -> Inspection {
        self.inner.take_inspection(&bound.inner)
    }

    fn upload(&self, memory: &Self::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.outside_of_captures("copies into the arena")?;
        self.inner.upload(memory, region, bytes)
    }

    fn download(&self, memory: &Self::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.outside_of_captures("copies out of the arena")?;
        self.inner.download(memory, region, bytes)
    }

    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>) {
        self.inner.intervals(&bound.inner, into);
    }

    fn is_checked(&self) -> bool {
        self.is_on || self.inner.is_checked()
    }

    fn meter(&self) -> Arc<Meter> {
        self.inner.meter()
    }

    fn poison(&self, reason: &str) {
        self.inner.poison(reason);
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}
