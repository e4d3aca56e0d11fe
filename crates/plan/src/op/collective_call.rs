//! A collective between calls, which the user declares: ranks exchange parts of a buffer.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, CollectiveKind, Counts, Group};
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
    /// Where the counts of its rows are; none where all is moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<CountSlots>,
}

/// The counts of a dispatch, or of what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CountSlots {
    /// How many rows the rank has for each other one.
    pub given: SlotId,
    /// How many it gets from each.
    pub taken: SlotId,
    /// What is declared of them.
    pub declared: Counts,
}

impl Operation for CollectiveCall {
    fn name(&self) -> &'static str {
        "collective call"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut accesses = vec![(self.from, Access::Read), (self.to, Access::Write)];
        if let Some(CountSlots { given, taken, declared }) = self.counts {
            let access = if declared.known { Access::Read } else { Access::Write };
            accesses.extend([(given, Access::Read), (taken, access)]);
        }
        accesses
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Call(self.call)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        let given = sizes.slot(self.from)?;
        let ranks = sizes.ranks(self.group);
        let to_each = self.kind.given_to_each(given, ranks);
        if let Some(CountSlots { given, declared, .. }) = self.counts {
            let counts = if declared.known { 0 } else { self.kind.given_to_each(sizes.slot(given)?, ranks) };
            return Some(Moves::Filled { most: to_each.saturating_add(counts), fill: declared.fill });
        }
        Some(match self.kind {
            CollectiveKind::AllToAll | CollectiveKind::ReduceScatter => Moves::Exchanged(to_each),
            CollectiveKind::AllGather => Moves::Gathered(to_each),
            CollectiveKind::Sum | CollectiveKind::Max => Moves::Combined(vec![given]),
        })
    }
}
