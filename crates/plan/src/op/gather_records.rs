//! The op that gathers the ranks' records before the vote.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, Group};
use warpweft_base::id::SlotId;

/// Gathers the ranks' records.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GatherRecords {
    /// This rank's record.
    pub from: SlotId,
    /// All ranks' records, in rank order.
    pub to: SlotId,
}

impl Operation for GatherRecords {
    fn name(&self) -> &'static str {
        "gather records"
    }

    fn part(&self) -> Part {
        Part::Collective(Group::World)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        Vec::new()
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        sizes.slot(self.from).map(Moves::Gathered)
    }
}
