//! A copy of a weight's state to the host, for a save that training does not wait for.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Copies a resident slot of a weight, as it is when the step begins, into the rank's snapshot: memory of the host
/// beside the arena. A rank whose rows another one saves copies nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Snapshot {
    /// The weight.
    pub weight: WeightId,
    /// What is copied: its master, the remainder and the shard that make one, or a list of optimizer state.
    pub from: SlotId,
    /// Where in the snapshot the copy begins, in bytes. It is as long as the slot.
    pub to: usize,
}

impl Operation for Snapshot {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.weight)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
