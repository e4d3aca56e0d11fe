//! The second part of a whole-matrix optimizer.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{BucketId, SlotId, WeightId};

/// Runs the second part of such an optimizer on the matrix that the rank has whole, if there is one. When the vote says
/// fault nothing reads what it makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Transform {
    /// The bucket.
    pub bucket: BucketId,
    /// The weights of the round.
    pub weights: Vec<WeightId>,
    /// The vote.
    pub vote: SlotId,
    /// The matrix, `[padded rows, columns]`.
    pub from: SlotId,
    /// What the optimizer makes of it.
    pub to: SlotId,
}

impl Operation for Transform {
    fn name(&self) -> &'static str {
        "transform"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.vote, Access::Read), (self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, Named::some(self.weights.iter().copied()))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
