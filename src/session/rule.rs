//! Do the closures have the rule of updates that the configuration asks for?
//!
//! Law: a session that would train by another optimizer than its closures were written for does not start.

use std::sync::Arc;

use crate::config::Config;
use warpweft_plan::compute::{ComputeError, ComputeFactory, Surface};
use warpweft_plan::model::StepProgram;

/// The same factory; what it makes has a rule if `config` asks for one and a program updates weights, and has none if
/// Adam updates them.
pub(super) fn checked<S: Surface + 'static>(
    closures: ComputeFactory<S>,
    config: &Config,
    programs: &[StepProgram],
) -> ComputeFactory<S> {
    let is_own = config.optimizer.own_states.is_some();
    let updates = programs.iter().any(StepProgram::updates_weights);
    let updating = programs.iter().filter(|program| program.updates_weights());
    let weights = updating.flat_map(|program| program.model().weights());
    // One that trains, if there is any. A matrix that is frozen for a while is no mistake.
    let whole = weights.filter(|spec| spec.parameters.whole_matrix).min_by_key(|spec| spec.frozen);
    let whole = whole.map(|spec| (spec.name.clone(), spec.frozen));
    Arc::new(move |seat| {
        let made = closures(seat)?;
        match (is_own, made.has_rule()) {
            (true, false) if updates => Err(ComputeError::NoRule),
            (false, true) => Err(ComputeError::RuleUnused),
            (true, true) if updates => match (&whole, made.has_matrix_rule()) {
                (Some((weight, false)), false) => Err(ComputeError::NoMatrixRule { weight: weight.clone() }),
                (None, true) => Err(ComputeError::MatrixRuleUnused),
                _ => Ok(made),
            },
            _ => Ok(made),
        }
    })
}
