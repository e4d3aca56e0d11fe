//! The actor of the step's verdict: fault word and step count.
//!
//! Law: the norm is taken before the vote, and the vote is cast once per step. The verdict itself is read on
//! the device by everything after it; the host never branches on it.

use super::{Actor, Context, ExecError, Ready, out_of_turn};
use warpweft_backend::Backend;
use warpweft_base::id::RankId;
use warpweft_plan::op::Op;
use warpweft_plan::plan::StepPlan;

/// Owns the verdict of a rank.
#[derive(Debug)]
pub struct VerdictActor {
    rank: RankId,
    has_norm: bool,
    has_voted: bool,
}

impl VerdictActor {
    /// The verdict actor of `rank`.
    #[must_use]
    pub fn new(rank: RankId) -> Self {
        Self { rank, has_norm: false, has_voted: false }
    }
}

impl<B: Backend> Actor<B> for VerdictActor {
    fn name(&self) -> &str {
        "verdict"
    }

    fn begin(&mut self, _plan: &StepPlan) {
        self.has_norm = false;
        self.has_voted = false;
    }

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError> {
        let task = ready.task();
        let before = match context.plan().task(task).op {
            Op::GradNorm(_) => std::mem::replace(&mut self.has_norm, true),
            Op::Vote(_) => !self.has_norm || std::mem::replace(&mut self.has_voted, true),
            _ => true,
        };
        if before {
            return Err(out_of_turn(context, self.rank, task));
        }
        context.issue(ready).map(|_| ())
    }
}
