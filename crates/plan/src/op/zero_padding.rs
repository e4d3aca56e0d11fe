//! Zeros after the rows that a call writes of a gradient.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Zeroes the rows of a gradient slot beyond the weight's real rows.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ZeroPadding {
    /// The weight.
    pub weight: WeightId,
    /// Its gradient slot.
    pub gradient: SlotId,
}

impl Operation for ZeroPadding {
    fn name(&self) -> &'static str {
        "zero padding"
    }

    fn part(&self) -> Part {
        Part::Calls
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.gradient, Access::Update)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.weight)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // Only the rows beyond the weight's own are touched.
        let element = sizes.gradient_element(self.gradient)?;
        Some(Moves::memory(sizes.padding(self.weight)?.saturating_mul(element)))
    }
}
