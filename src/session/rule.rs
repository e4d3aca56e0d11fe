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
    let updating = programs.iter().filter(|program| program.updates_weights());
    let matrices = updating.flat_map(|program| program.model().weights());
    let matrices: Vec<&WeightSpec> = matrices.filter(|spec| spec.parameters.whole_matrix).collect();
    let by_matrix = matrices.iter().find(|spec| !spec.frozen).map(|spec| spec.name.clone());
    // Matrices that are all frozen for a while are no mistake.
    let has_matrices = !matrices.is_empty();
    Arc::new(move |seat| {
        let made = closures(seat)?;
        match (is_own, made.has_rule()) {
            (true, false) if updates => Err(ComputeError::NoRule),
            (false, true) => Err(ComputeError::RuleUnused),
            (true, true) if updates => match (&by_matrix, made.has_matrix_rule()) {
                (Some(weight), false) => Err(ComputeError::NoMatrixRule { weight: weight.clone() }),
                (None, true) if !has_matrices => Err(ComputeError::MatrixRuleUnused),
                _ => Ok(made),
            },
            _ => Ok(made),
        }
    })
}
