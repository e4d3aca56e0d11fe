//! The actor of a bucket: its weights' masters, moments, main grads and shards.
//!
//! Law: the shards are quantized from the masters as the optimizer left them, and the actor knows which
//! version both hold. A replicated weight is read as its master, and a shard may be half of a master, or cast by
//! the task that updates it; then the two are rewritten together. Masters are one version on when all of the bucket's
//! weights were updated.
//! The actor follows its tasks through the step and reports the edge they leave, which the rank compares with
//! what the plan promised (PL-9).

use super::{Actor, Context, ExecError, Ready};
use warpweft_backend::Backend;
use warpweft_base::id::BucketId;
use warpweft_plan::model::Placement;
use warpweft_plan::op::{Adam, Op, Update};
use warpweft_plan::plan::{BoundaryState, StepPlan};

/// Owns the shards of one bucket.
#[derive(Debug)]
pub struct BucketActor {
    bucket: BucketId,
    name: String,
    state: BoundaryState,
    /// Weights updated in this step, by one task for each parameter group or round of whole matrices.
    updated: usize,
}

impl BucketActor {
    /// The actor of `bucket`.
    #[must_use]
    pub fn new(bucket: BucketId) -> Self {
        let state = BoundaryState { masters: warpweft_base::id::Version::default(), shards: None };
        Self { bucket, name: bucket.to_string(), state, updated: 0 }
    }

    /// What the bucket's weights hold once `op`, which is about them, is done.
    fn follow(&mut self, op: &Op, plan: &StepPlan) {
        match op {
            Op::Adam(Adam { states, .. }) => self.count_updated(states.len(), plan),
            Op::Update(Update { states, .. }) => self.count_updated(states.len(), plan),
            Op::PartialCast(_) => self.state.shards = Some(self.state.masters),
            _ => {}
        }
    }

    fn count_updated(&mut self, weights: usize, plan: &StepPlan) {
        let members = plan.weights.bucket(self.bucket);
        self.updated += weights;
        if self.updated == members.weights.len() {
            self.state.masters = self.state.masters.next();
            let replicated = members.placement == Placement::Replicated;
            let together =
                plan.weights.splits_masters(self.bucket) || plan.weights.casts_in_update(self.bucket);
            if replicated || together {
                self.state.shards = Some(self.state.masters);
            }
        }
    }
}

impl<B: Backend> Actor<B> for BucketActor {
    fn name(&self) -> &str {
        &self.name
    }

    fn begin(&mut self, plan: &StepPlan) {
        (self.state, self.updated) = (plan.entry, 0);
    }

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError> {
        let plan = context.plan();
        self.follow(&plan.task(ready.task()).op, plan);
        context.issue(ready).map(|_| ())
    }

    fn edge(&self) -> Option<BoundaryState> {
        Some(self.state)
    }
}
