//! Gradients rounded before they travel.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Rounds a full gradient to bf16, to nearest even, so that it can be reduced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RoundGradient {
    /// The weight.
    pub weight: WeightId,
    /// The f32 gradient.
    pub from: SlotId,
    /// The same in bf16.
    pub to: SlotId,
}

impl Operation for RoundGradient {
    fn name(&self) -> &'static str {
        "round gradient"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.weight)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
