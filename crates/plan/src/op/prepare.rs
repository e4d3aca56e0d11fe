//! The first part of a whole-matrix optimizer.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Update, Write};
use warpweft_base::id::{BucketId, SlotId, WeightId};

/// Runs the first part of a whole-matrix optimizer: of every weight of a round, the rank's rows of what
/// the matrix is made of, from main grads and what the optimizer keeps. It has no effect when the vote says fault; on a
/// GPU the optimizer's kernels see to that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Prepare {
    /// The bucket.
    pub bucket: BucketId,
    /// The weights of the round, at most one for each rank of a replica, of one size.
    pub states: Vec<PrepareOperand>,
    /// The vote, which carries clip factor and step count.
    pub vote: SlotId,
    /// What the optimizer goes by, of every weight.
    pub hyperparameters: SlotId,
    /// Where the rows go: those of one weight after those of the one before.
    pub to: SlotId,
}

/// One weight of a round of matrices: what a custom optimizer prepares its rows from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PrepareOperand {
    /// The weight.
    pub weight: WeightId,
    /// The lists that the custom optimizer keeps, updated.
    pub kept: Vec<SlotId>,
    /// Main grad, read.
    pub main_grad: SlotId,
}

impl Operation for Prepare {
    fn name(&self) -> &'static str {
        "prepare"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = vec![(self.vote, Read), (self.hyperparameters, Read), (self.to, Write)];
        for state in &self.states {
            all.extend(state.kept.iter().map(|slot| (*slot, Update)));
            all.push((state.main_grad, Read));
        }
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, Named::some(self.states.iter().map(|state| state.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
