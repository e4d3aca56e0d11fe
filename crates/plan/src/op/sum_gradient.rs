//! The sum of gradients that ranks exchanged.

use serde::Serialize;

use super::WireType;
use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access::{self, Read, Update, Write};
use crate::model::Group;
use warpweft_base::id::{SlotId, WeightId};

/// Sums a rank's slices of gradients, its own and those that were exchanged, in rank order in f32. If
/// nothing is to be done in between, the same pass over memory accumulates the sums as
/// [`Op::Accumulate`](super::Op::Accumulate) does. Below the last [level](crate::model::Mesh::tree) the sums are of a
/// block of ranks, as many slices as [`Mesh::slices`](crate::model::Mesh::slices) says, and go on from there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SumGradient {
    /// The type in which the gradients travelled.
    pub wire: WireType,
    /// Whose slices are summed.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// What is summed; at least one.
    pub parts: Vec<SumPart>,
}

/// One weight of a sum over what was exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SumPart {
    /// The weight.
    pub weight: WeightId,
    /// The rank's full gradient, in the type that travelled, or what it summed at the level before: its own
    /// slices are read there.
    pub own: SlotId,
    /// The peers' slices; absent where a replica is one rank, which has none.
    pub received: Option<SlotId>,
    /// Where the sum goes, f32 but for sums that travel on in another type ([`SumTarget::wire`]).
    pub into: SlotId,
    /// What goes there.
    pub target: SumTarget,
    /// Where sums of squares of the main grad go that this makes, one f64 for every
    /// [`SQUARED_TOGETHER`](super::SQUARED_TOGETHER) elements: taken where no contribution comes after it, for
    /// [`Op::GradNorm`](super::Op::GradNorm), which then reads the main grad no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub squares: Option<SlotId>,
}

/// What becomes of a rank's rows of a gradient once they are summed over the ranks of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum SumTarget {
    /// The sum as it is, to be summed at the next level or over the replicas.
    Rows,
    /// The sum rounded to bf16, to nearest even, to be summed at the next level.
    Rounded,
    /// The sum rounded to MXFP8, to be summed at the next level.
    Quantized,
    /// The main grad, begun: the sum divided by the number of ranks and of micro-batches.
    First,
    /// The main grad, continued: the same, added to the contributions before it.
    More,
}

impl SumTarget {
    /// Sums that travel on to the next level in this type.
    #[must_use]
    pub const fn travelling_in(wire: WireType) -> Self {
        match wire {
            WireType::F32 => Self::Rows,
            WireType::Bf16 => Self::Rounded,
            WireType::Mxfp8 => Self::Quantized,
        }
    }

    /// Whether it goes into the main grad.
    #[must_use]
    pub const fn accumulates(self) -> bool {
        matches!(self, Self::First | Self::More)
    }

    /// The type of what goes there.
    #[must_use]
    pub const fn wire(self) -> WireType {
        match self {
            Self::Rounded => WireType::Bf16,
            Self::Quantized => WireType::Mxfp8,
            Self::Rows | Self::First | Self::More => WireType::F32,
        }
    }
}

impl Operation for SumGradient {
    fn name(&self) -> &'static str {
        "sum gradient"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = Vec::with_capacity(4 * self.parts.len());
        for part in &self.parts {
            all.push((part.own, Read));
            all.extend(part.received.map(|slot| (slot, Read)));
            all.push((part.into, if part.target == SumTarget::More { Update } else { Write }));
            all.extend(part.squares.map(|slot| (slot, Write)));
        }
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // Of the rank's own gradient its own slices are read.
        let touched = self.parts.iter().map(|part| {
            let own = self.wire.bytes(sizes.summed(part.weight, self.group)?);
            let received = part.received.map_or(Some(0), |slot| sizes.slot(slot))?;
            let times = if part.target == SumTarget::More { 2 } else { 1 };
            let squares = part.squares.map_or(Some(0), |slot| sizes.slot(slot))?;
            let read = own.saturating_add(received);
            Some(read.saturating_add(sizes.slot(part.into)?.saturating_mul(times)).saturating_add(squares))
        });
        sum(touched).map(Moves::memory)
    }
}
