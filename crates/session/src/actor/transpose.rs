//! The actor of what is derived from gathered planes on the quantize lane.
//!
//! Law: it owns every columnwise copy that the step derives, dense copies that are made ahead of their calls,
//! and gathered planes that are made whole on its lane, each once. When a copy is made and dropped is the
//! plan's decision.

use super::{Actor, Context, ExecError, Ready};
use warpweft_backend::Backend;
use warpweft_plan::plan::StepPlan;

/// Owns what a rank derives.
#[derive(Debug)]
pub struct TransposeActor;

impl<B: Backend> Actor<B> for TransposeActor {
    fn name(&self) -> &str {
        "transpose"
    }

    fn begin(&mut self, _plan: &StepPlan) {}

    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError> {
        context.issue(ready).map(|_| ())
    }
}
