//! A copy of a slot, by which buffers of the host come into a step and leave it.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::SlotId;

/// Copies a slot to another of the same size: staging of inputs and outputs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Copy {
    /// Source.
    pub from: SlotId,
    /// Target.
    pub to: SlotId,
}

impl Operation for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn part(&self) -> Part {
        Part::Calls
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        Vec::new()
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
