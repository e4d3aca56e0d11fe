//! A collective between calls, which the user declares: ranks exchange parts of a buffer.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, CollectiveKind, Group};
use warpweft_base::id::{CallId, SlotId};

/// Gives other ranks what a buffer holds, in the place of a call ([`Collective`](crate::model::Collective)). It
/// takes place whatever the fault word says (CO-2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CollectiveCall {
    /// Which call.
    pub call: CallId,
    /// What is done.
    pub kind: CollectiveKind,
    /// Among which ranks.
    #[serde(skip_serializing_if = "Group::is_world")]
    pub group: Group,
    /// What the rank gives.
    pub from: SlotId,
    /// What it gets.
    pub to: SlotId,
}

impl Operation for CollectiveCall {
    fn name(&self) -> &'static str {
        "collective call"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Call(self.call)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        let given = sizes.slot(self.from)?;
        let to_each = self.kind.given_to_each(given, sizes.ranks(self.group));
        Some(match self.kind {
            CollectiveKind::AllToAll | CollectiveKind::ReduceScatter => Moves::Exchanged(to_each),
            CollectiveKind::AllGather => Moves::Gathered(to_each),
            CollectiveKind::Sum | CollectiveKind::Max => Moves::Combined(vec![given]),
        })
    }
}
