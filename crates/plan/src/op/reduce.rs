//! Ops that bring gradients to the ranks that own their rows, summed on the way or not.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use super::{Op, WireType};
use crate::model::{Access, Group};
use warpweft_base::id::{SlotId, WeightId};

/// Sums the gradient of one weight, or those of several of a group as one collective, over the ranks of a
/// replica, in rank order in f32; each rank keeps its rows. For a collective library that sums by itself:
/// it does what [`Op::ExchangeGradient`] and [`Op::SumGradient`] do in two tasks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ReduceScatter {
    /// The ranks that the weights are sharded over.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// The type in which the gradients travel: f32 or bf16.
    pub wire: WireType,
    /// What is reduced; at least one.
    pub parts: Vec<ReducePart>,
}

/// Gives every rank of a replica, or of one of its [levels](crate::model::Mesh::tree), its slices of the others'
/// gradients of one weight, or of several of a group as one collective. They are not summed; the peers' slices come one
/// after the other in rank order. A rank's slice of its own gradient stays where it is. Nothing is computed.
///
/// At a level a rank takes several slices: with `n` ranks of the group, those whose number is its own position, modulo
/// `n`. Those of the same place from all peers come one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ExchangeGradient {
    /// The type in which the gradients travel.
    pub wire: WireType,
    /// Who exchanges.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// What is exchanged; at least one.
    pub parts: Vec<ReducePart>,
}

/// One weight of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ReducePart {
    /// The weight.
    pub weight: WeightId,
    /// The rank's full gradient, in the type that travels; or what it summed at the level before.
    pub from: SlotId,
    /// The summed rows of this rank, f32; for an exchange, the peers' slices for it, as they travel.
    pub to: SlotId,
}

impl ReducePart {
    fn accesses(parts: &[Self]) -> Vec<(SlotId, Access)> {
        parts.iter().flat_map(|part| [(part.from, Access::Read), (part.to, Access::Write)]).collect()
    }

    /// Bytes of what a rank of a group gets of all of them from each other one, in the type that travels.
    fn rows(parts: &[Self], wire: WireType, group: Group, sizes: &dyn Sizes) -> Option<usize> {
        sum(parts.iter().map(|part| Some(wire.bytes(sizes.summed(part.weight, group)?))))
    }
}

impl Op {
    /// The reduction of one gradient, in f32, without tensor parallelism.
    #[must_use]
    pub fn reduce_scatter(weight: WeightId, from: SlotId, to: SlotId) -> Self {
        let parts = vec![ReducePart { weight, from, to }];
        Self::ReduceScatter(ReduceScatter { group: Group::Shard, wire: WireType::F32, parts })
    }
}

impl Operation for ReduceScatter {
    fn name(&self) -> &'static str {
        "reduce-scatter"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        ReducePart::accesses(&self.parts)
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // The library of collectives adds on the way.
        ReducePart::rows(&self.parts, self.wire, self.group, sizes).map(Moves::Gathered)
    }
}

impl Operation for ExchangeGradient {
    fn name(&self) -> &'static str {
        "exchange gradient"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        ReducePart::accesses(&self.parts)
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        ReducePart::rows(&self.parts, self.wire, self.group, sizes).map(Moves::Exchanged)
    }
}
