//! Object-safe backend operations used at start-up.
//!
//! Law: all else that a start does is the same for every backend, knows none, and is compiled once, in this library.
//! The rank's thread, which works by its backend, is compiled for each.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::checkpoint::OptimizerIdentity;
use crate::config::Reduce;
use crate::exec::{
    CaptureMode, ExecError, FirstPlanes, Handover, Inbox, Initializer, RankThread, Setup, World,
    receive_buffer_bytes,
};
use crate::trace::HostLane;
use warpweft_backend::Backend;
use warpweft_base::id::RankId;
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::model::Mesh;
use warpweft_plan::plan::StepPlan;

/// A backend with the factory of its rank's closures.
pub(in crate::session) struct Unstarted<B: Backend> {
    pub(in crate::session) backend: B,
    pub(in crate::session) closures: ComputeFactory<B::Surface>,
}

/// What all ranks of a process are started with.
pub(in crate::session) struct Shared {
    pub(in crate::session) world: Arc<World>,
    pub(in crate::session) prologue: Arc<StepPlan>,
    /// One for each program, then those of parts of sums.
    pub(in crate::session) programs: Vec<Arc<StepPlan>>,
    pub(in crate::session) foreseen: Vec<Arc<StepPlan>>,
    pub(in crate::session) capture: CaptureMode,
    /// See [`Setup::optimizer_identity`].
    pub(in crate::session) optimizer_identity: Arc<OnceLock<OptimizerIdentity>>,
    pub(in crate::session) initializer: Initializer,
    pub(in crate::session) base: Option<FirstPlanes>,
    pub(in crate::session) patience: Duration,
    pub(in crate::session) inbox: Arc<Inbox>,
}

/// An [`Unstarted`] whose backend's type is forgotten.
pub(in crate::session) trait Startable: Send {
    fn rank(&self) -> RankId;
    fn mesh(&self) -> Mesh;
    fn reduce(&self) -> Reduce;
    fn describe(&self) -> String;
    fn origin(&self) -> Instant;
    fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), ExecError>;
    fn receive_buffer_bytes(&self, shared: &Shared) -> Result<usize, ExecError>;
    fn start(
        self: Box<Self>,
        shared: &Shared,
        spans: Option<HostLane>,
        handover: Handover,
    ) -> Result<RankThread, ExecError>;
}

impl<B: Backend> Startable for Unstarted<B> {
    fn rank(&self) -> RankId {
        self.backend.rank()
    }

    fn mesh(&self) -> Mesh {
        self.backend.mesh()
    }

    fn reduce(&self) -> Reduce {
        self.backend.reduce()
    }

    fn describe(&self) -> String {
        self.backend.describe()
    }

    fn origin(&self) -> Instant {
        self.backend.origin()
    }

    fn admit(&self, ranks: usize, lanes: usize, bytes: usize) -> Result<(), ExecError> {
        Ok(self.backend.admit(ranks, lanes, bytes)?)
    }

    fn receive_buffer_bytes(&self, shared: &Shared) -> Result<usize, ExecError> {
        receive_buffer_bytes(&self.backend, &shared.prologue, shared.programs.iter().chain(&shared.foreseen))
    }

    fn start(
        self: Box<Self>,
        shared: &Shared,
        spans: Option<HostLane>,
        handover: Handover,
    ) -> Result<RankThread, ExecError> {
        let Self { backend, closures } = *self;
        let setup = Setup {
            backend,
            world: Arc::clone(&shared.world),
            prologue: Arc::clone(&shared.prologue),
            programs: shared.programs.clone(),
            foreseen: shared.foreseen.clone(),
            capture: shared.capture,
            closures,
            optimizer_identity: Arc::clone(&shared.optimizer_identity),
            initializer: Arc::clone(&shared.initializer),
            base: shared.base.clone(),
            patience: shared.patience,
            spans,
        };
        RankThread::start(setup, handover, Arc::clone(&shared.inbox))
    }
}
