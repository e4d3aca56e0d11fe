//! The actor of what is derived from gathered planes on the quantize lane.
//!
//! Law: it owns every columnwise copy that the step derives, dense copies that are made ahead of their calls,
//! and gathered planes that are made whole on its lane, each once. When a copy is made and dropped is the
//! plan's decision.

use super::{Actor, Context, Ready, out_of_turn};
use crate::backend::Backend;
use crate::flow::FlowError;
use crate::id::RankId;
use crate::op::Op;
use crate::plan::StepPlan;

/// Owns the transposed copies of a rank.
#[derive(Debug)]
pub struct TransposeActor {
    rank: RankId,
}

impl TransposeActor {
    /// The transpose actor of `rank`.
    #[must_use]
    pub fn new(rank: RankId) -> Self {
        Self { rank }
    }
}

impl<B: Backend> Actor<B> for TransposeActor {
    fn name(&self) -> &str {
        "transpose"
    }

    fn begin(&mut self, _plan: &StepPlan) {}

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), FlowError> {
        let task = ready.task();
        let derives =
            |op: &Op| matches!(op, Op::Transpose { .. } | Op::Assemble { .. } | Op::Dequantize { .. });
        if !derives(&context.plan().task(task).op) {
            return Err(out_of_turn(context, self.rank, task));
        }
        context.issue(ready).map(|_| ())
    }
}
