//! The actor of a communicator: a serial resource of all ranks.
//!
//! Laws:
//! - **CO-1** It launches collectives in plan order, one sequence number after the other, whatever else
//!   happens. Ranks that skipped or swapped one would wait for each other forever; here the next number is
//!   checked before anything is launched.
//! - **CO-2** A faulted input never cancels a collective.

use super::{Actor, Context, ExecError, Ready};
use warpweft_backend::Backend;
use warpweft_base::id::{CommId, CommSeq, RankId};
use warpweft_plan::plan::StepPlan;

/// Owns one communicator.
#[derive(Debug)]
pub struct CollectiveActor {
    rank: RankId,
    comm: CommId,
    name: String,
    launched: u32,
}

impl CollectiveActor {
    /// The actor of `comm` on `rank`.
    #[must_use]
    pub fn new(rank: RankId, comm: CommId) -> Self {
        Self { rank, comm, name: comm.to_string(), launched: 0 }
    }
}

impl<B: Backend> Actor<B> for CollectiveActor {
    fn name(&self) -> &str {
        &self.name
    }

    fn begin(&mut self, _plan: &StepPlan) {
        self.launched = 0;
    }

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError> {
        let task = ready.task();
        let plan = context.plan();
        if plan.task(task).collective != Some((self.comm, CommSeq::new(self.launched))) {
            return Err(ExecError::OutOfSequence { rank: self.rank, task: plan.describe(task) });
        }
        self.launched += 1;
        context.issue(ready).map(|_| ())
    }
}
