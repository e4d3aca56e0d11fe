//! Ops that accumulate a gradient into the sum that the optimizer gets.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Adds a gradient into a sum, divided by the number of ranks and of micro-batches.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Accumulate {
    /// The weight.
    pub weight: WeightId,
    /// What is added: reduced rows, summed over the replicas where there are several, or a replicated
    /// weight's full gradient.
    pub from: SlotId,
    /// Main grad, or a replicated weight's local sum.
    pub into: SlotId,
    /// The first contribution of a step overwrites instead of adding.
    pub first: bool,
    /// Where squares of a main grad go that this completes: [`SumPart::squares`](super::SumPart::squares).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub squares: Option<SlotId>,
}

impl Operation for Accumulate {
    fn name(&self) -> &'static str {
        "accumulate"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let into = if self.first { Access::Write } else { Access::Update };
        let squares = self.squares.map(|slot| (slot, Access::Write));
        [(self.from, Access::Read), (self.into, into)].into_iter().chain(squares).collect()
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.weight)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
