//! The actor of a bucket: its weights' masters, moments, main grads and shards.
//!
//! Law: the shards are quantized from the masters as the optimizer left them, and the actor knows which
//! version both hold. A replicated weight is read as its master, and a shard may be half of a master; then
//! the two are rewritten together. Masters are one version on when all of the bucket's weights were updated.
//! The actor checks the order update → cast, and reports the edge it leaves.

use super::{Actor, Context, Ready, out_of_turn};
use crate::backend::Backend;
use crate::flow::FlowError;
use crate::id::{BucketId, RankId};
use crate::model::Placement;
use crate::op::Op;
use crate::plan::{EdgeState, StepPlan};

/// Owns the shards of one bucket.
#[derive(Debug)]
pub struct BucketActor {
    rank: RankId,
    bucket: BucketId,
    name: String,
    state: EdgeState,
    /// Weights updated in this step, by one task for each parameter group.
    updated: usize,
}

impl BucketActor {
    /// The actor of `bucket` on `rank`.
    #[must_use]
    pub fn new(rank: RankId, bucket: BucketId) -> Self {
        let state = EdgeState { masters: crate::id::Version::default(), shards: None };
        Self { rank, bucket, name: bucket.to_string(), state, updated: 0 }
    }

    /// What the bucket's weights hold once `op`, which is about them, is done.
    fn follow(&mut self, op: &Op, plan: &StepPlan) {
        match op {
            Op::Adam { states, .. } => {
                let members = plan.weights.bucket(self.bucket);
                self.updated += states.len();
                if self.updated == members.weights.len() {
                    self.state.masters = self.state.masters.next();
                    let replicated = members.placement == Placement::Replicated;
                    if replicated || plan.weights.splits_masters(self.bucket) {
                        self.state.shards = Some(self.state.masters);
                    }
                }
            }
            Op::PartialCast { .. } => self.state.shards = Some(self.state.masters),
            _ => {}
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

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), FlowError> {
        let task = ready.task();
        let plan = context.plan();
        let op = &plan.task(task).op;
        let own = match *op {
            Op::Adam { bucket, .. }
            | Op::PartialCast { bucket, .. }
            | Op::PartialAmax { bucket, .. }
            | Op::FusedScale { bucket, .. }
            | Op::DelayedScale { bucket, .. }
            | Op::RecordAmax { bucket, .. } => bucket == self.bucket,
            Op::RoundGradient { weight, .. }
            | Op::AddGradient { weight, .. }
            | Op::Accumulate { weight, .. } => plan.weights.layout(weight).bucket == self.bucket,
            Op::SumGradient { ref parts, .. } => {
                parts.first().is_some_and(|part| plan.weights.layout(part.weight).bucket == self.bucket)
            }
            _ => false,
        };
        if !own {
            return Err(out_of_turn(context, self.rank, task));
        }
        self.follow(op, plan);
        context.issue(ready).map(|_| ())
    }

    fn edge(&self) -> Option<EdgeState> {
        Some(self.state)
    }
}
