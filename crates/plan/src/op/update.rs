//! A custom optimizer on the masters of a bucket.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access::{self, Read, Update as Updated};
use warpweft_base::id::{BucketId, SlotId, WeightId};

/// Runs the custom optimizer on masters of a bucket. It has no effect when the vote says fault; on a
/// GPU the optimizer's kernels see to that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Update {
    /// The bucket.
    pub bucket: BucketId,
    /// State of its weights.
    pub states: Vec<UpdateOperand>,
    /// The vote, which carries clip factor and step count.
    pub vote: SlotId,
    /// What the optimizer goes by, of every weight.
    pub hyperparameters: SlotId,
    /// Where the weights are a round of matrices: the rank's rows of what [`Op::Transform`](super::Op::Transform) made
    /// of them, one weight's after those of the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transformed: Option<SlotId>,
}

/// State of one weight that a custom optimizer updates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UpdateOperand {
    /// The weight.
    pub weight: WeightId,
    /// Its whole master, updated.
    pub master: SlotId,
    /// The lists that the custom optimizer keeps, updated: as many as
    /// [`StateLayout::lists`](crate::layout::StateLayout::lists).
    pub kept: Vec<SlotId>,
    /// Main grad, read.
    pub main_grad: SlotId,
}

impl Operation for Update {
    fn name(&self) -> &'static str {
        "update"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = vec![(self.vote, Read), (self.hyperparameters, Read)];
        all.extend(self.transformed.map(|slot| (slot, Read)));
        for state in &self.states {
            all.push((state.master, Updated));
            all.extend(state.kept.iter().map(|slot| (*slot, Updated)));
            all.push((state.main_grad, Read));
        }
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, Named::some(self.states.iter().map(|state| state.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // What the optimizer leaves is read once more, by another kernel. Its own arithmetic nobody knows.
        let updated = |slot: &SlotId| Some(sizes.slot(*slot)?.saturating_mul(3));
        let states = self.states.iter().flat_map(|state| {
            let slots = state.kept.iter().chain([&state.master]);
            slots.map(updated).chain([sizes.slot(state.main_grad)])
        });
        let transformed = self.transformed.map_or(Some(0), |slot| sizes.slot(slot));
        let bytes = sum(std::iter::once(transformed).chain(states))?;
        Some(Moves::Memory { bytes, kernels: 2 })
    }
}
