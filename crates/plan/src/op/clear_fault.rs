//! The op that clears the fault word at the begin of a step.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::SlotId;

/// Sets the fault word to zero at the start of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ClearFault {
    /// The fault word.
    pub fault: SlotId,
}

impl Operation for ClearFault {
    fn name(&self) -> &'static str {
        "clear fault"
    }

    fn part(&self) -> Part {
        Part::Calls
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.fault, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        Vec::new()
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
