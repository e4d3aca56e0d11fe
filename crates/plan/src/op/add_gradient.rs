//! Gradients added on the rank before they are reduced.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Adds a call's full gradient to another call's, or to a sum of several, on this rank and undivided, so
/// that they are reduced together. Padding rows are added like all others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AddGradient {
    /// The weight.
    pub weight: WeightId,
    /// What is added.
    pub from: SlotId,
    /// The gradient it is added to.
    pub into: SlotId,
}

impl Operation for AddGradient {
    fn name(&self) -> &'static str {
        "add gradient"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.into, Access::Update)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.weight)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
