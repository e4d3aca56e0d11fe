//! The all-reduce: the ranks of a group combine their values, and each gets the result.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::{Access, Group};
use warpweft_base::id::SlotId;

/// How ranks' values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Reduction {
    /// Sum in rank order, in f32.
    Sum,
    /// Maximum.
    Max,
}

/// Combines f32 slots of all ranks of a group, element by element, into a slot of each of them. A sum of
/// reduced gradients over replicas is one of these, in f32 whatever the gradients travelled in before; that of
/// replicated weights is one for each level of the world. Each element is combined in rank order, by every rank or,
/// where that saves enough bytes, by one for all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AllReduce {
    /// Sum or maximum.
    pub reduction: Reduction,
    /// Whose slots.
    #[serde(skip_serializing_if = "Group::is_world")]
    pub group: Group,
    /// Pairs of source and target; all travel as one collective.
    pub pairs: Vec<(SlotId, SlotId)>,
}

impl Operation for AllReduce {
    fn name(&self) -> &'static str {
        "all-reduce"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        self.pairs.iter().flat_map(|(from, to)| [(*from, Access::Read), (*to, Access::Write)]).collect()
    }

    fn named(&self) -> Vec<Named> {
        if self.pairs.is_empty() { vec![Named::Nothing("value")] } else { Vec::new() }
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        let values: Option<Vec<usize>> = self.pairs.iter().map(|(from, _)| sizes.slot(*from)).collect();
        values.map(Moves::Combined)
    }
}
