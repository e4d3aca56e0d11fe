//! Do the closures have the rule of updates that the configuration asks for?
//!
//! Law: a session that would train by another optimizer than its closures were written for does not start.

use std::sync::Arc;

use crate::compute::{ComputeError, ComputeFactory, Surface};
use crate::config::Config;
use crate::model::{StepProgram, WeightSpec};

/// The same factory; what it makes has a rule if `config` asks for one and a program updates weights, and has none if
/// Adam updates them.
pub(super) fn checked<S: Surface + 'static>(
    closures: ComputeFactory<S>,
    config: &Config,
    programs: &[StepProgram],
) -> ComputeFactory<S> {
    let is_own = config.optimizer.own_states.is_some();
    let updates = programs.iter().any(StepProgram::updates_weights);
    let whole = |frozen| {
        let programs = programs.iter().filter(|program| program.updates_weights());
        programs.flat_map(|program| program.model().weights()).find(|spec| is_whole(spec, frozen))
    };
    let by_matrix = whole(false).map(|spec| spec.name.clone());
    // A matrix that is frozen for a while is no mistake.
    let is_asked_for = by_matrix.is_some() || whole(true).is_some();
    Arc::new(move |seat| {
        let made = closures(seat)?;
        match (is_own, made.has_rule()) {
            (true, false) if updates => Err(ComputeError::NoRule),
            (false, true) => Err(ComputeError::RuleUnused),
            (true, true) if updates => match (&by_matrix, made.has_matrix_rule()) {
                (Some(weight), false) => Err(ComputeError::NoMatrixRule { weight: weight.clone() }),
                (None, true) if !is_asked_for => Err(ComputeError::MatrixRuleUnused),
                _ => Ok(made),
            },
            _ => Ok(made),
        }
    })
}

/// Is the weight to be updated as a whole matrix, or would it be if it were not frozen?
const fn is_whole(spec: &WeightSpec, frozen: bool) -> bool {
    spec.parameters.whole_matrix && spec.frozen == frozen
}
