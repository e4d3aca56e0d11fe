//! A custom optimizer as a session's builder gets it.
//!
//! Law: how many states it keeps is known before anything is planned. A session whose weights want whole matrices of an
//! optimizer that takes none, or the other way around, does not start; nor do ranks of one process with different
//! optimizers. Those of several processes compare theirs later (`exec/agreement.rs`).

use std::sync::{Arc, OnceLock};

use crate::checkpoint::OptimizerIdentity;
use warpweft_plan::compute::{
    ComputeError, ComputeFactory, Optimizer, OptimizerFactory, Surface, WithOptimizer,
};
use warpweft_plan::model::StepProgram;

/// What it keeps, and what makes it on each rank.
pub(in crate::session) struct CustomOptimizer<S: Surface> {
    /// Lists of state beside every master.
    pub(in crate::session) states: usize,
    pub(in crate::session) made: OptimizerFactory<S>,
}

impl<S: Surface + 'static> CustomOptimizer<S> {
    /// The same closures with it beside them, where a program updates weights.
    /// The first rank that has it says in `named` which it is, and the others have the same.
    pub(in crate::session) fn beside(
        self,
        closures: ComputeFactory<S>,
        programs: &[StepProgram],
        named: Arc<OnceLock<OptimizerIdentity>>,
    ) -> ComputeFactory<S> {
        let updating = programs.iter().filter(|program| program.updates_weights());
        let weights = updating.clone().flat_map(|program| program.model().weights());
        // One that trains, if there is any. A matrix that is frozen for a while is no mistake.
        let whole = weights.filter(|spec| spec.parameters.whole_matrix).min_by_key(|spec| spec.frozen);
        let whole = whole.map(|spec| (spec.name.clone(), spec.frozen));
        let updates = updating.count() > 0;
        Arc::new(move |seat| {
            let calls = closures(seat)?;
            let optimizer = (self.made)(seat)?;
            check(optimizer.as_ref(), self.states)?;
            if updates {
                check_matrices(optimizer.as_ref(), whole.as_ref())?;
            }
            let identity = OptimizerIdentity::custom(optimizer.as_ref());
            let first = named.get_or_init(|| identity.clone());
            if *first != identity {
                let (optimizer, first) = (identity.to_string(), first.to_string());
                return Err(ComputeError::OtherOptimizer { optimizer, first });
            }
            Ok(Box::new(WithOptimizer { calls, optimizer }))
        })
    }
}

/// The same closures, which have a custom optimizer of their own: the plans are for one.
pub(in crate::session) fn required<S: Surface + 'static>(closures: ComputeFactory<S>) -> ComputeFactory<S> {
    Arc::new(move |seat| {
        let mut made = closures(seat)?;
        if made.optimizer().is_none() { Err(ComputeError::NoOptimizer) } else { Ok(made) }
    })
}

/// The plans have memory for what it names.
fn check<S: Surface>(optimizer: &dyn Optimizer<S>, states: usize) -> Result<(), ComputeError> {
    let (name, named) = (optimizer.name(), optimizer.states());
    match named.len() == states {
        true => Ok(()),
        false => Err(ComputeError::OtherStates { optimizer: name, named: named.len(), states }),
    }
}

/// `whole` is a weight whose matrix is to be whole, and whether it is frozen.
fn check_matrices<S: Surface>(
    optimizer: &dyn Optimizer<S>,
    whole: Option<&(String, bool)>,
) -> Result<(), ComputeError> {
    let name = optimizer.name();
    match (whole, optimizer.takes_whole_matrices()) {
        (Some((weight, false)), false) => {
            Err(ComputeError::NoMatrixRule { weight: weight.clone(), optimizer: name })
        }
        (None, true) => Err(ComputeError::MatrixRuleUnused { optimizer: name }),
        _ => Ok(()),
    }
}
