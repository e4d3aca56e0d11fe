//! A collective that the user declares: what ranks give each other of a buffer.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, ExchangeKind, Group};
use warpweft_base::id::{CallId, SlotId};

/// Gives other ranks what a buffer holds, in the place of a call ([`Exchange`](crate::model::Exchange)). It
/// takes place whatever the fault word says (CO-2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExchangeBuffer {
    /// Which call.
    pub call: CallId,
    /// What is done.
    pub kind: ExchangeKind,
    /// Among which ranks.
    #[serde(skip_serializing_if = "Group::is_world")]
    pub group: Group,
    /// What the rank gives.
    pub from: SlotId,
    /// What it gets.
    pub to: SlotId,
}

impl Operation for ExchangeBuffer {
    fn name(&self) -> &'static str {
        "exchange buffer"
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
            ExchangeKind::AllToAll => Moves::Exchanged(to_each),
            ExchangeKind::AllGather => Moves::Gathered(to_each),
            ExchangeKind::Sum | ExchangeKind::Max => Moves::Combined(vec![given]),
        })
    }
}
