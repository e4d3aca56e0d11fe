//! What an op names besides its slots: operands, shards, parts of collectives, optimizer state.
//!
//! Law: plain data that the planner makes and backends read. An operand says where it is and what it is to
//! its op, and never how many bytes it has: sizes follow from the weights' layouts.

use serde::Serialize;

use crate::model::Access;
use warpweft_base::id::{BufferId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// What a compute call's operand is to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum OperandRole {
    /// The weight of the n-th entry of [`crate::model::Call::uses`].
    Use(usize),
    /// What dequantizing the planes of the n-th use needs besides them.
    TensorScale(usize),
    /// The gradient of a weight.
    Gradient(WeightId),
    /// A declared buffer.
    Buffer(BufferId),
}

/// One operand of a compute call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Operand {
    /// Where it is.
    pub slot: SlotId,
    /// What the call does to it.
    pub access: Access,
    /// What it is to the call.
    pub role: OperandRole,
}

/// One quantized shard of a bucket op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ShardOperand {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation.
    pub orientation: Orientation,
    /// Its planes.
    pub slot: SlotId,
}

/// One weight of a gather, and of what makes its planes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GatherPart {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation travels.
    pub orientation: Orientation,
    /// The rank's shard.
    pub from: SlotId,
    /// The gathered planes.
    pub to: SlotId,
}

/// One weight whose columnwise planes are derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TransposePart {
    /// The weight.
    pub weight: WeightId,
    /// Gathered rowwise planes.
    pub from: SlotId,
    /// Columnwise planes.
    pub to: SlotId,
}

/// One weight whose planes become values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DequantizePart {
    /// The weight.
    pub weight: WeightId,
    /// Orientation of planes and values.
    pub orientation: Orientation,
    /// Element type of the values, [`ElementType::F32`] or [`ElementType::Bf16`].
    pub values: ElementType,
    /// Gathered planes, whole or as they arrived (see `own`), or transposed ones.
    pub from: SlotId,
    /// The rank's own shard, rowwise. If it is present, `from` holds what a gather brought, not assembled:
    /// the rank's own rows are read from here, those of the other ranks from there, and scale rows that
    /// travel once are stored once.
    pub own: Option<SlotId>,
    /// Tensor scales of the weight's bucket; absent for formats without.
    pub tensor_scale: Option<SlotId>,
    /// The values.
    pub to: SlotId,
}

/// Bytes of every rank's shard, its planes one after the other: what one chunk of a gather moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Chunk {
    /// The first byte; 0 begins the gather anew.
    pub begin: usize,
    /// One past the last byte; where it equals the shard's bytes, the gather ends.
    pub end: usize,
}

/// One weight of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ReducePart {
    /// The weight.
    pub weight: WeightId,
    /// The rank's full gradient, in the element type that travels.
    pub from: SlotId,
    /// The summed rows of this rank, f32; for an exchange, the peers' slices of these rows, as they travel.
    pub to: SlotId,
}

/// One weight of a sum over what was exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct SumPart {
    /// The weight.
    pub weight: WeightId,
    /// The rank's full gradient, in the element type that travelled: its own slice is read there.
    pub own: SlotId,
    /// The peers' slices; absent where a replica is one rank, which has none.
    pub landed: Option<SlotId>,
    /// Where the sum goes, f32.
    pub into: SlotId,
    /// What goes there.
    pub target: SumTarget,
}

/// What becomes of a rank's rows of a gradient once they are summed over the ranks of its replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum SumTarget {
    /// Reduced rows: the sum as it is, to be summed over the replicas.
    Rows,
    /// The main grad, begun: the sum divided by the number of ranks and of micro-batches.
    First,
    /// The main grad, continued: the same, added to the contributions before it.
    More,
}

/// Where the master of a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MasterOperand {
    /// f32, in a slot of its own.
    Whole(SlotId),
    /// In two halves: see [`warpweft_format::split_master`].
    Split {
        /// The weight's bf16 shard, the upper half.
        shard: SlotId,
        /// The 16 bits it lacks.
        remainder: SlotId,
    },
}

impl MasterOperand {
    /// Every slot the master occupies.
    pub(super) fn slots(self) -> impl Iterator<Item = SlotId> {
        let (first, second) = match self {
            Self::Whole(master) => (master, None),
            Self::Split { shard, remainder } => (shard, Some(remainder)),
        };
        std::iter::once(first).chain(second)
    }
}

/// One weight of a round of matrices: what a rule prepares its rows from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PrepareOperand {
    /// The weight.
    pub weight: WeightId,
    /// The lists that the rule keeps, updated.
    pub kept: Vec<SlotId>,
    /// Main grad, read.
    pub main_grad: SlotId,
}

/// State of one weight that a custom optimizer updates.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct UpdateOperand {
    /// The weight.
    pub weight: WeightId,
    /// Its whole master, updated.
    pub master: SlotId,
    /// The lists that the rule keeps, updated: as many as [`StateLayout::lists`](crate::layout::StateLayout::lists).
    pub kept: Vec<SlotId>,
    /// Main grad, read.
    pub main_grad: SlotId,
}

/// Optimizer state of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AdamOperand {
    /// The weight.
    pub weight: WeightId,
    /// Master, updated.
    pub master: MasterOperand,
    /// First moment, updated.
    pub exp_avg: SlotId,
    /// Second moment, updated.
    pub exp_avg_sq: SlotId,
    /// Main grad, read.
    pub main_grad: SlotId,
}
