//! The actor of the compute lane: the user's calls and what comes right before and after them, such as
//! making gathered planes whole.
//!
//! Law: calls are issued in program order, each once; collectives between them are their communicator's. Only the
//! device knows what a closure does and whether it failed in this step; the actor issues the same tasks either way.

use super::{Actor, Context, ExecError, Ready, out_of_turn};
use warpweft_backend::Backend;
use warpweft_base::id::{CallId, RankId};
use warpweft_plan::op::{Compute, Op};
use warpweft_plan::plan::StepPlan;

/// Owns the compute lane.
#[derive(Debug)]
pub struct ComputeActor {
    rank: RankId,
    /// Calls so far, with the collectives before the last of them.
    issued: usize,
}

impl ComputeActor {
    /// The compute actor of `rank`.
    #[must_use]
    pub fn new(rank: RankId) -> Self {
        Self { rank, issued: 0 }
    }
}

impl<B: Backend> Actor<B> for ComputeActor {
    fn name(&self) -> &str {
        "compute"
    }

    fn begin(&mut self, _plan: &StepPlan) {
        self.issued = 0;
    }

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError> {
        let task = ready.task();
        if let Op::Compute(Compute { call, .. }) = context.plan().task(task).op {
            let calls = context.plan().calls.get(self.issued..).unwrap_or_default();
            let collectives = calls.iter().take_while(|call| call.collective.is_some()).count();
            if call != CallId::at(self.issued + collectives) {
                return Err(out_of_turn(context, self.rank, task));
            }
            self.issued += collectives + 1;
        }
        context.issue(ready).map(|_| ())
    }
}
