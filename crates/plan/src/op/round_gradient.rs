//! Gradients rounded before they travel.

use serde::Serialize;

use super::WireType;
use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::ElementType;

/// Rounds a full gradient to what it travels in, so that it can be reduced.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RoundGradient {
    /// The weight.
    pub weight: WeightId,
    /// In what the gradient is: f32, or bf16 where its call wrote it so.
    #[serde(skip_serializing_if = "is_f32")]
    pub element: ElementType,
    /// The gradient.
    pub from: SlotId,
    /// What it travels in: bf16 or MXFP8.
    #[serde(skip_serializing_if = "is_bf16")]
    pub wire: WireType,
    /// The same gradient in that type.
    pub to: SlotId,
}

const fn is_f32(element: &ElementType) -> bool {
    matches!(element, ElementType::F32)
}

const fn is_bf16(wire: &WireType) -> bool {
    matches!(wire, WireType::Bf16)
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
