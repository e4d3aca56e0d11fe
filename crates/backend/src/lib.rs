//! Backends: what runs a plan. One narrow trait, its laws, threads of the CPU, virtual time, and how ranks meet.
//!
//! It is not a planner: a backend obeys. GPUs are `warpweft-cuda`'s. No version number promises anything of this crate:
//! use `warpweft`, which exports what a user needs.
//!
//! ```
//! use warpweft_backend::cpu::{CpuOptions, CpuWorld};
//! use warpweft_base::id::RankId;
//! use warpweft_plan::model::Mesh;
//!
//! // Two ranks on this machine's CPU: each is a value that one thread drives.
//! let world = CpuWorld::new(Mesh::new(2)?, CpuOptions::default())?;
//! let backends = (world.backend(RankId::new(0))?, world.backend(RankId::new(1))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Laws:
//! - **BK-1** Validation lives above the backend. A backend trusts its binding; `Checked` wraps any backend
//!   and catches an executor that breaks the rules.
//! - **BK-2** `enqueue`, `record`, `wait` and `launch` neither allocate nor synchronize once warm, except to enqueue a
//!   collective where ranks share a GPU.
//! - A lane runs in order. Nothing orders two lanes but `record` and `wait`.
//! - A capture begins and ends on the first of the lanes it was made on. All of it runs after what that
//!   lane got before, and what that lane gets next runs after all of it. A step may be several
//!   captures, with tasks enqueued on that lane between them; none waits for an event of another.
//! - Otherwise `synchronize` is the only host wait, and only a step boundary calls it. A backend may wait in
//!   the first step of a plan, before it is warm.
//!
//! A backend value speaks for one rank; ranks of one world find each other through what the value
//! was made from. Planning, pacing and the meaning of a step are deliberately absent.

#[doc(hidden)]
pub mod bell;
mod checked;
mod choices;
#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod closures;
pub mod cpu;
mod error;
mod inspection;
#[doc(hidden)]
pub mod local;
mod meter;
mod poison;
pub mod rendezvous;
pub mod sim;
mod snapshot;

pub use checked::Checked;
#[doc(hidden)]
pub use checked::{CheckedBound, CheckedGraph};
pub use choices::{DeviceTimes, SignalBy, Transport};
pub use error::BackendError;
pub use inspection::Inspection;
pub use meter::{Activity, HostSplit, Meter};
pub use snapshot::SnapshotMemory;

use std::sync::Arc;
use std::time::Instant;

use warpweft_base::id::{CallId, EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::{ComputeFactory, Surface};
#[cfg(doc)]
use warpweft_plan::layout::StateLayout;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::{ByteSize, Reduce};

/// Enqueues ops, records and waits for events, captures and replays: one rank's device.
pub trait Backend: Send + 'static {
    /// What closures get their memory from.
    type Surface: Surface;
    /// The rank's arena. Its address never changes.
    type Memory;
    /// One in-order lane.
    type Stream;
    /// A plan bound to the arena: per op, everything a launch needs.
    type Bound;
    /// A capture: a step, or a segment of one.
    type Graph;

    /// The rank this value speaks for.
    fn rank(&self) -> RankId;

    /// The ranks of the world this value belongs to.
    fn mesh(&self) -> Mesh;

    /// How gradients are summed over the ranks.
    fn reduce(&self) -> Reduce;

    /// One line for people: what this is, and whether its link is paced.
    fn describe(&self) -> String;

    /// The instant from which [`TaskInterval`]s are counted; the same on all ranks of a process.
    fn origin(&self) -> Instant;

    /// Bytes this backend needs besides the arena while it runs a plan, for what peers send without a slot in
    /// the plan: values to combine, and what is to be passed on. The same on every rank.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] for an op this backend cannot run, [`BackendError::Mesh`] for a plan of
    /// another mesh than the world's.
    fn receive_buffer_bytes(&self, binding: &Binding<'_>) -> Result<usize, BackendError>;

    /// Refuses `ranks` ranks of this process, of `lanes` lanes and `bytes` bytes each, if the system would. Called
    /// before anything is reserved for any of them.
    ///
    /// # Errors
    /// [`BackendError::Room`].
    fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), BackendError> {
        let _ = (ranks, lanes, bytes);
        Ok(())
    }

    /// Reserves the arena, zeroed, for moments and counts begin with that; and `receive_buffer` bytes besides it: what
    /// [`Backend::receive_buffer_bytes`] says for the most demanding plan. Called once.
    ///
    /// # Errors
    /// [`BackendError::Memory`] when there is not enough memory.
    fn reserve(&self, bytes: usize, receive_buffer: usize) -> Result<Self::Memory, BackendError>;

    /// Reserves the rank's snapshot, memory of the host of `bytes` bytes, into which plans that are bound afterwards
    /// copy state ([`Op::Snapshot`](warpweft_plan::op::Op::Snapshot)). It never moves. Called once, at a step boundary.
    ///
    /// # Errors
    /// [`BackendError::Device`] when there is not enough memory, or when the backend copies nothing to the host, which
    /// is the default.
    fn reserve_snapshot(
        &self,
        _memory: &Self::Memory,
        bytes: usize,
    ) -> Result<Arc<dyn SnapshotMemory>, BackendError> {
        Err(no_snapshot(self.rank(), bytes, "this backend takes none"))
    }

    /// Opens a lane. The compute lane gets the factory of the rank's closures; it is called on
    /// the thread that will run them. They are run by [`BoundCall::run`](warpweft_plan::compute::BoundCall::run), which
    /// sees to it that a closure requests what its call overwrites (EX-4).
    ///
    /// # Errors
    /// [`BackendError::Lane`] when the lane or the closures cannot be made.
    fn open(
        &self,
        memory: &Self::Memory,
        lane: Lane,
        closures: Option<ComputeFactory<Self::Surface>>,
    ) -> Result<Self::Stream, BackendError>;

    /// The lane a stream carries.
    fn lane(&self, stream: &Self::Stream) -> LaneId;

    /// Binds a plan: resolves regions, lengths of this rank's shards, tables. May allocate.
    ///
    /// # Errors
    /// As [`Backend::receive_buffer_bytes`]; [`BackendError::Mesh`] for a plan of another mesh.
    fn bind(&self, memory: &Self::Memory, binding: &Binding<'_>) -> Result<Self::Bound, BackendError>;

    /// Opens a step of a bound plan: every event counts as not yet recorded.
    ///
    /// # Errors
    /// [`BackendError::Poisoned`] when the world can no longer run steps.
    fn begin_step(&self, bound: &mut Self::Bound) -> Result<(), BackendError>;

    /// Does a plan run differently until one of its steps has completed on all ranks? The same on every rank.
    fn has_cold_steps(&self) -> bool;

    /// A step of the bound plan has completed on all ranks, and no closure failed in it. So whatever is
    /// loaded or made when a plan runs for the first time is there. Called once, on all ranks after the same
    /// step, if [`Backend::has_cold_steps`] says so or steps of the plan are captured.
    fn warmed(&self, bound: &mut Self::Bound);

    /// Enqueues task `task` of the bound plan on its lane.
    ///
    /// # Errors
    /// [`BackendError::Lane`] when the lane is gone, [`BackendError::Hazard`] from a checker.
    fn enqueue(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        task: TaskId,
    ) -> Result<(), BackendError>;

    /// Records `event` after everything enqueued on the lane so far.
    ///
    /// # Errors
    /// As [`Backend::enqueue`].
    fn record(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError>;

    /// Makes the lane wait for `event` before what is enqueued next.
    ///
    /// # Errors
    /// As [`Backend::enqueue`].
    fn wait(
        &self,
        stream: &mut Self::Stream,
        bound: &Self::Bound,
        event: EventId,
    ) -> Result<(), BackendError>;

    /// From now on the lanes capture instead of running.
    ///
    /// # Errors
    /// [`BackendError::Lane`] when a lane already captures.
    fn begin_capture(&self, streams: &mut [Self::Stream], bound: &Self::Bound) -> Result<(), BackendError>;

    /// Ends capturing; nothing has run.
    ///
    /// # Errors
    /// [`BackendError::Lane`] when a lane does not capture.
    fn end_capture(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
    ) -> Result<Self::Graph, BackendError>;

    /// Runs a capture once more, in place of enqueuing what is in it; at most once per step.
    ///
    /// # Errors
    /// As [`Backend::enqueue`].
    fn launch(
        &self,
        streams: &mut [Self::Stream],
        bound: &Self::Bound,
        graph: &Self::Graph,
    ) -> Result<(), BackendError>;

    /// Waits until the lane has run everything, and returns its first error since the last call.
    ///
    /// # Errors
    /// Whatever went wrong on the lane.
    fn synchronize(&self, stream: &mut Self::Stream) -> Result<(), BackendError>;

    /// The fault of this step's closures, if one failed. Read from the compute lane after
    /// [`Backend::synchronize`]. Asking clears it, and closures run again.
    fn take_fault(&self, stream: &mut Self::Stream) -> Option<ClosureFault>;

    /// Whether, since this was last asked, the optimizer left a master or a moment from which no training goes
    /// on ([`Via::largest`](warpweft_format::Via::largest), [`StateLayout::largest_moment`]), or a tensor had an
    /// amax without a scale. What a step did is known once all of its lanes were waited for. Asking clears it.
    fn take_diverged(&self) -> bool;

    /// Whether the gradients of the coming steps are inspected where that costs a pass over memory. Returns whether
    /// those steps must be issued for it, because their captures have no inspection. A backend that inspects the
    /// gradients of every step, captured or not, has nothing to change, which is the default.
    fn inspect(&self, _on: bool) -> bool {
        false
    }

    /// What inspecting the gradients of a step of the bound plan found. The lanes are drained. Asking clears it.
    fn take_inspection(&self, bound: &Self::Bound) -> Inspection;

    /// Copies bytes into the arena, at a step boundary.
    ///
    /// # Errors
    /// [`BackendError::Host`] when lengths differ or the memory is in use.
    fn upload(&self, memory: &Self::Memory, region: Region, bytes: &[u8]) -> Result<(), BackendError>;

    /// Copies bytes out of the arena, at a step boundary.
    ///
    /// # Errors
    /// As [`Backend::upload`].
    fn download(&self, memory: &Self::Memory, region: Region, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// When every task of the last step ran, in task order; empty where the backend did not
    /// measure. `into` is cleared first and only grows the first time.
    fn intervals(&self, bound: &Self::Bound, into: &mut Vec<TaskInterval>);

    /// Whether the checking layer is already around this backend, so that a session which is to check puts no
    /// second one there. A backend that wraps another says what the other does.
    fn is_checked(&self) -> bool {
        false
    }

    /// The meter to which this backend charges its driver calls, closures that it runs while a task is
    /// enqueued, and its waits. The code that drives the rank begins it and reads it. A backend that wraps
    /// another hands on the other's meter. One that calls no driver while a step is issued has nothing to
    /// charge, which is the default.
    fn meter(&self) -> Arc<Meter> {
        Arc::default()
    }

    /// Makes every wait of every rank of this world fail with `reason`, now and later. What is on the lanes
    /// stays there: [`Backend::synchronize`] lets it run to its end, whatever it waits for.
    fn poison(&self, reason: &str);

    /// Like [`Backend::poison`], and also ends by force what waits for other ranks. For a rank that is given
    /// up.
    fn abort(&self, reason: &str);
}

/// When one task ran, in nanoseconds since the origin of the world's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskInterval {
    /// When the lane had reached the task and its waits were over.
    pub begin: u64,
    /// When a collective's last rank arrived; equal to `begin` for other ops.
    pub joined: u64,
    /// When the task was done.
    pub end: u64,
}

impl TaskInterval {
    /// That of a task for which the lane was ready at `begin`, whose last rank arrived at `joined`.
    #[must_use]
    pub const fn new(begin: u64, joined: u64, end: u64) -> Self {
        Self { begin, joined, end }
    }

    /// Whether the task ran and was timed. One that did not is all zeros.
    #[must_use]
    pub const fn ran(&self) -> bool {
        self.end > 0
    }
}

/// A closure that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosureFault {
    /// The call it was carrying out.
    pub call: CallId,
    /// What it said.
    pub message: String,
    /// Whether it panicked, after which the closure's state is no longer trusted.
    pub panicked: bool,
}

/// Why there is no snapshot.
#[doc(hidden)]
#[must_use]
pub fn no_snapshot(rank: RankId, bytes: usize, reason: impl std::fmt::Display) -> BackendError {
    let doing = format!("reserving a snapshot of {}", ByteSize::of(bytes).in_full());
    let reason = format!("{reason}; set checkpoint.snapshot_bytes below that, and training waits for saves");
    BackendError::Device { rank, doing, reason }
}

/// Checks that a plan runs in a world of its own mesh.
///
/// # Errors
/// [`BackendError::Mesh`] where it does not.
#[doc(hidden)]
pub fn within(binding: &Binding<'_>, world: Mesh) -> Result<(), BackendError> {
    let plan = binding.weights.mesh;
    if plan == world { Ok(()) } else { Err(BackendError::Mesh { rank: binding.rank, plan, world }) }
}
