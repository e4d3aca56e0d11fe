//! Columnwise planes, where a format does not store them.

use serde::Serialize;

use super::Op;
use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Derives columnwise planes from gathered rowwise ones, for one weight or for several that one gather
/// brought.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Transpose {
    /// What is derived; at least one.
    pub parts: Vec<TransposePart>,
}

/// One weight whose columnwise planes are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TransposePart {
    /// The weight.
    pub weight: WeightId,
    /// Gathered rowwise planes.
    pub from: SlotId,
    /// Columnwise planes.
    pub to: SlotId,
}

impl Op {
    /// Columnwise planes of one weight.
    #[must_use]
    pub fn transpose(weight: WeightId, from: SlotId, to: SlotId) -> Self {
        Self::Transpose(Transpose { parts: vec![TransposePart { weight, from, to }] })
    }
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn part(&self) -> Part {
        Part::Planes
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        self.parts.iter().flat_map(|part| [(part.from, Access::Read), (part.to, Access::Write)]).collect()
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
