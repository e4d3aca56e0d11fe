//! The op that brings the rows of matrices together on one rank each, and back.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, Group};
use warpweft_base::id::{SlotId, WeightId};

/// Brings the rows of a round's matrices together, so that the first rank of the group gets the first matrix
/// whole, the second the second, and so on; or brings the rows back in the same way. Ranks for which there is no
/// matrix take part.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExchangeRows {
    /// The ranks that the weights are sharded over.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// The weights of the round.
    pub weights: Vec<WeightId>,
    /// What the rank gives: one part for each rank.
    pub from: SlotId,
    /// What it gets: one part of each rank.
    pub to: SlotId,
}

impl Operation for ExchangeRows {
    fn name(&self) -> &'static str {
        "exchange rows"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![(self.from, Access::Read), (self.to, Access::Write)]
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.weights.iter().copied())
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        let first = self.weights.first()?;
        Some(Moves::Exchanged(sizes.rows(*first)?.saturating_mul(size_of::<f32>())))
    }
}
