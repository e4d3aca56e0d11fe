//! The memory that deriving columnwise planes on demand saves.
//!
//! Law: a plan says nothing of one that was not made. Who wants to know what the other would take asks here, and
//! both are plans that sessions run.

use crate::config::{Columnwise, Config};
use crate::session::SessionError;
use crate::session::start::plans::Plans;
use warpweft_plan::model::StepProgram;
use warpweft_plan::op::Op;
use warpweft_plan::plan::{Costs, PlanError, StepPlan};

/// The transient bytes that `plan` saves by deriving columnwise planes on demand over keeping them from their gather
/// on; 0 for a plan that keeps them or needs none, and `None` where one that keeps them would not fit the budget. It is
/// of `program`, planned as `config` says, and so is the plan that it is compared with, which is made here. `costs` are
/// those that it was planned with, if not the configuration's.
///
/// # Errors
/// As [`plan_program`](crate::session::plan_program).
pub fn columnwise_saving(
    plan: &StepPlan,
    program: &StepProgram,
    config: &Config,
    costs: Option<&Costs>,
) -> Result<Option<usize>, SessionError> {
    let derives = plan.tasks.iter().any(|task| matches!(task.op, Op::Transpose(_)));
    if !derives || plan.policy.columnwise == Columnwise::Keep {
        return Ok(Some(0));
    }
    let keeping = Config { columnwise: Columnwise::Keep, ..config.clone() };
    let (programs, mesh) = (std::slice::from_ref(program), plan.weights.mesh);
    let planned = match costs {
        Some(_) => Plans::with_costs(programs, &keeping, mesh, costs),
        None => Plans::new(programs, &keeping, mesh),
    };
    let bytes = |plan: &StepPlan| plan.bounds.transient_bytes;
    match planned {
        Ok(plans) => {
            let kept = plans.programs.first().map_or(0, |plan| bytes(plan));
            Ok(Some(kept.saturating_sub(bytes(plan))))
        }
        Err(SessionError::Plan(PlanError::Budget { .. } | PlanError::Prefetch { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}
