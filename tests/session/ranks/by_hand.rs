//! A rank without a thread: a test issues its tasks itself, on its opened and bound backend.

use std::sync::Arc;

use warpweft_backend::Backend;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{ActorId, RankId, TaskId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::plan::StepPlan;
use warpweft_session::actor::{ExecError, Issuer, Poison, Post, Right, Wiring};
use warpweft_session::exec::Pump;

/// Rank 0 of a plan, in a step that has begun on its backend. All actors share one mailbox.
pub(crate) struct ByHand<B: Backend> {
    pub(crate) plan: Arc<StepPlan>,
    pub(crate) post: Post,
    pub(crate) poison: Poison,
    backend: B,
    streams: Vec<B::Stream>,
    bound: B::Bound,
}

impl<B: Backend<Surface = CpuSurface>> ByHand<B> {
    pub(crate) fn new(plan: &Arc<StepPlan>, backend: B, closures: &ComputeFactory<CpuSurface>) -> Self {
        let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
        let streams = plan.lanes.iter().map(|lane| {
            let calls = (lane.id == plan.compute_lane()).then(|| Arc::clone(closures));
            backend.open(&memory, *lane, calls).unwrap()
        });
        let streams = streams.collect();
        let mut bound = backend.bind(&memory, &plan.binding(RankId::new(0), &plan.ops())).unwrap();
        backend.begin_step(&mut bound).unwrap();
        let post = Post::new(RankId::new(0), vec![ActorId::new(0); plan.tasks.len()], &[1000]);
        Self { plan: Arc::clone(plan), post, poison: Poison::default(), backend, streams, bound }
    }

    /// An issuer at the beginning of a step.
    pub(crate) fn begin(&self, wiring: Wiring) -> Issuer {
        let (plan, wiring) = (Arc::clone(&self.plan), Arc::new(wiring));
        let mut issuer = Issuer::new(RankId::new(0), plan, wiring, self.poison.clone());
        issuer.begin(&self.post).unwrap();
        issuer
    }

    pub(crate) fn issue(
        &mut self,
        issuer: &mut Issuer,
        task: TaskId,
        right: Option<Right>,
    ) -> Result<(), ExecError> {
        let Self { post, backend, streams, bound, .. } = self;
        issuer.issue(task, right.into_iter(), post, backend, streams, bound).map(drop)
    }

    /// The whole step, by its actors.
    pub(crate) fn pump(&mut self) -> Result<(), ExecError> {
        let mut pump = Pump::new(RankId::new(0), &self.plan, self.poison.clone());
        pump.run(&self.backend, &mut self.streams, &self.bound)
    }

    /// Waits until the device has done what was issued.
    pub(crate) fn synchronize(&mut self) {
        self.streams.iter_mut().for_each(|stream| self.backend.synchronize(stream).unwrap());
    }
}
