//! The content of a slot, and how many bytes it takes.
//!
//! Law: a slot has one content for the whole of its interval. Its size follows from the content, the weights'
//! layouts and the declared buffers, and is given nowhere else. [`Content::bytes`] has no wildcard: a new
//! content does not compile until its size is stated.

use serde::Serialize;

use super::state::StateLayout;
use super::weight::PlaneRegions;
use super::weights::Weights;
use crate::model::{Group, Hyperparameters, Mesh};
use crate::op::{NormRecord, SQUARED_TOGETHER, Vote, WireType};
use warpweft_base::id::{BucketId, BufferId, CallId, LevelId, MicroBatchId, StateId, WeightId};
use warpweft_format::{ElementType, Format, Orientation, Shape};

/// How far a round of matrices has come, for a whole-matrix optimizer: see [`Op::Prepare`](crate::op::Op::Prepare).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum RoundStage {
    /// What a custom optimizer made of the rank's rows, of each matrix of the round: `[matrices, rows_per_rank, cols]`.
    Prepared,
    /// One matrix whole, with padding rows: `[padded rows, cols]`. Ranks have different ones.
    Gathered,
    /// What the optimizer made of it, like it.
    Transformed,
    /// The rank's rows of what was made of each matrix, like the prepared ones.
    Returned,
}

/// What a slot is for. Sizes follow from it (see [`Content::bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Content {
    /// FP32 master of the rank's rows, f32 `[rows_per_rank, cols]`.
    Master(WeightId),
    /// The lower halves of masters whose upper halves are the rank's bf16 shard, i16
    /// `[rows_per_rank, cols]`: see [`warpweft_format::split_master`].
    MasterRemainder(WeightId),
    /// A list of optimizer state, shaped as the master: Adam's first and second moment, in the element type of
    /// [`StateLayout::moments`](super::StateLayout::moments), or what a custom optimizer keeps, in f32.
    State(WeightId, StateId),
    /// FP32 main grad of the rank's rows, shaped as the master.
    MainGrad(WeightId),
    /// A rank's own sum of gradients of a replicated weight, before the all-reduce.
    LocalGrad(WeightId),
    /// Those of this rank's block of a level, which is not the last, added up: as large.
    BlockGrad(WeightId, LevelId),
    /// The rank's quantized rows in one stored orientation: data plane, then scale plane.
    Shard(WeightId, Orientation),
    /// All slices of such a shard, where each replica has one, one after the other.
    Published(WeightId, Orientation),
    /// What dequantizing needs besides the planes, f32, one per weight of the bucket.
    TensorScale(BucketId),
    /// Delayed scaling: amaxes of the weights of a bucket over all ranks, f32 `[weights, history]`, the latest
    /// first.
    AmaxHistory(BucketId),
    /// Delayed scaling: the factors the bucket's present shards were cast with, f32, one per weight.
    DelayedScale(BucketId),
    /// Step count of the optimizer, one u32.
    OptimizerStep,
    /// The first fault of the rank's closures in this step, one u32: call number + 1, or 0.
    FaultWord,
    /// What the optimizer goes by in the coming step, one [`Hyperparameters`] for each weight in the order of their
    /// ids, written by the user.
    Hyperparameters,
    /// Loss scale of the coming step, one f32, written by the user.
    LossScale,
    /// What main grads are a multiple of at the end of the coming step, one f32, written by the session: the loss
    /// scale, times the number of steps whose gradients they add up.
    GradientScale,
    /// Amax of the rank's rows, f32, one per weight of the bucket.
    LocalAmax(BucketId),
    /// The maximum of the ranks' amaxes, f32, one per weight of the bucket.
    ReducedAmax(BucketId),
    /// Amax of every block of the rank's rows, f32, weight after weight, orientation after
    /// orientation.
    BlockAmax(BucketId),
    /// The factor the cast multiplies every block by, ordered as the amaxes.
    Encode(BucketId),
    /// A gathered weight: planes of the padded shape, rowwise or columnwise.
    Gathered(WeightId, Orientation),
    /// Columnwise planes derived from gathered rowwise ones.
    Transposed(WeightId),
    /// A dequantized weight: f32 or bf16 `[rows, cols]`, or its transpose for a columnwise use.
    Dense(WeightId, Orientation, ElementType),
    /// The full gradient of one weight from one call that writes it in f32: `[padded rows, cols]`.
    Gradient(WeightId, CallId),
    /// A gradient as it travels, bf16 `[padded rows, cols]`: from a call that writes it in bf16, or rounded
    /// from this call's f32 gradient or the sum that begins with it.
    WireGradient(WeightId, CallId),
    /// The same in MXFP8: of every rank's rows, or slice of these, codes `[rows, cols]`, then scales
    /// `[rows, cols / 32]`.
    QuantizedGradient(WeightId, CallId),
    /// The other ranks' slices of that gradient that this rank sums, in rank order without its own: of its rows,
    /// `[shards - 1, rows_per_rank, cols]` in the type in which it travels. Where sums have levels, those of
    /// its block: `[slices, block - 1, rows_per_rank, cols]`.
    ReceivedGradient(WeightId, CallId, WireType),
    /// The sums of that gradient over this rank's block of a level, which is not the last, as they travel on:
    /// `[slices, rows_per_rank, cols]` in that type, with [`Mesh::slices`](crate::model::Mesh::slices) slices.
    PartialGradient(WeightId, CallId, LevelId, WireType),
    /// The other blocks' slices of such sums of the level before, for this rank to sum at this one:
    /// `[slices, ranks - 1, rows_per_rank, cols]` in the type in which they travel.
    ReceivedPartial(WeightId, CallId, LevelId, WireType),
    /// The rank's rows of that gradient, summed over the ranks of its replica: f32 `[rows_per_rank, cols]`.
    ReducedGradient(WeightId, CallId),
    /// Those rows, summed over the replicas where there are several: f32 `[rows_per_rank, cols]`.
    SummedGradient(WeightId, CallId),
    /// A round of matrices, named by its first weight, f32: as many bytes as this weight's padded rows, whatever the
    /// stage.
    Round(WeightId, RoundStage),
    /// A declared buffer.
    Buffer(BufferId),
    /// The transfer area between user and plan for an input or output of one micro-batch.
    Staging(BufferId, MicroBatchId),
    /// Sums of squares of the rank's main grad of a weight, f64, one for every [`SQUARED_TOGETHER`] elements.
    Squares(WeightId),
    /// A rank's [`crate::op::NormRecord`].
    NormRecord,
    /// Every rank's [`crate::op::NormRecord`], in rank order.
    NormRecords,
    /// The [`crate::op::Vote`] of the step.
    Vote,
}

impl Content {
    /// Adam's first moment of a weight.
    #[must_use]
    pub const fn first_moment(weight: WeightId) -> Self {
        Self::State(weight, StateId::new(0))
    }

    /// Adam's second moment of a weight.
    #[must_use]
    pub const fn second_moment(weight: WeightId) -> Self {
        Self::State(weight, StateId::new(1))
    }

    /// What is kept of a weight that trains beside its master: as many lists as the layout of the state says.
    pub fn kept(state: StateLayout, weight: WeightId) -> impl Iterator<Item = Self> {
        state.states().map(move |list| Self::State(weight, list))
    }

    /// The element type of a full gradient, in which calls write it and padding rows are zeroed; `None` for
    /// any other content.
    #[must_use]
    pub const fn gradient_element(self) -> Option<ElementType> {
        match self {
            Self::Gradient(..) => Some(ElementType::F32),
            Self::WireGradient(..) => Some(ElementType::Bf16),
            _ => None,
        }
    }

    /// Whether it is made from a weight or its gradient within a step.
    #[must_use]
    pub const fn is_of_a_weight(self) -> bool {
        match self {
            Self::Gathered(..)
            | Self::Published(..)
            | Self::Transposed(_)
            | Self::Dense(..)
            | Self::Gradient(..)
            | Self::WireGradient(..)
            | Self::QuantizedGradient(..)
            | Self::ReceivedGradient(..)
            | Self::PartialGradient(..)
            | Self::ReceivedPartial(..)
            | Self::ReducedGradient(..)
            | Self::SummedGradient(..)
            | Self::BlockGrad(..)
            | Self::Round(..) => true,
            Self::Master(_)
            | Self::MasterRemainder(_)
            | Self::State(..)
            | Self::MainGrad(_)
            | Self::LocalGrad(_)
            | Self::Shard(..)
            | Self::TensorScale(_)
            | Self::AmaxHistory(_)
            | Self::DelayedScale(_)
            | Self::OptimizerStep
            | Self::FaultWord
            | Self::Hyperparameters
            | Self::LossScale
            | Self::GradientScale
            | Self::LocalAmax(_)
            | Self::ReducedAmax(_)
            | Self::BlockAmax(_)
            | Self::Encode(_)
            | Self::Buffer(_)
            | Self::Staging(..)
            | Self::Squares(_)
            | Self::NormRecord
            | Self::NormRecords
            | Self::Vote => false,
        }
    }

    /// The slot in which a call writes its gradient of a weight in `element`.
    #[must_use]
    pub const fn written(weight: WeightId, call: CallId, element: ElementType) -> Self {
        match element {
            ElementType::Bf16 => Self::WireGradient(weight, call),
            ElementType::F32 | ElementType::U8 | ElementType::U32 => Self::Gradient(weight, call),
        }
    }

    /// The slot of a gradient that begins with this call's, as it travels in `wire`.
    #[must_use]
    pub const fn travelling(weight: WeightId, call: CallId, wire: WireType) -> Self {
        match wire {
            WireType::F32 => Self::Gradient(weight, call),
            WireType::Bf16 => Self::WireGradient(weight, call),
            WireType::Mxfp8 => Self::QuantizedGradient(weight, call),
        }
    }

    /// Size of a slot with this content, for the given weights and buffers. Saturates; planning refuses slots
    /// for which it would.
    #[must_use]
    pub fn bytes(self, weights: &Weights, buffer_bytes: impl Fn(BufferId) -> usize) -> usize {
        let layout = |weight: WeightId| weights.layout(weight);
        let f32s = |elements: usize| elements.saturating_mul(ElementType::F32.bytes());
        let stored = |weight, bytes| layout(weight).stored_elements().saturating_mul(bytes);
        // The ranks over which a gradient is summed at a level, and the elements of a slice that one sums there.
        let summed = |weight: WeightId, level: LevelId| {
            let shard = layout(weight).shard;
            let group = shard.tree(weights.mesh).nth(level.index()).unwrap_or(shard.group());
            (group, shard.summed_over(group).elements())
        };
        let blocks = |bucket, count: fn(Format, Orientation, Shape) -> usize| {
            f32s(weights.block_sizes(bucket, count).fold(0, usize::saturating_add))
        };
        match self {
            Self::State(weight, _) => stored(weight, weights.state.moment_bytes()),
            Self::MasterRemainder(weight) => stored(weight, size_of::<i16>()),
            Self::Master(weight)
            | Self::MainGrad(weight)
            | Self::LocalGrad(weight)
            | Self::BlockGrad(weight, _)
            | Self::ReducedGradient(weight, _)
            | Self::SummedGradient(weight, _) => f32s(layout(weight).stored_elements()),
            Self::Shard(weight, orientation) => {
                PlaneRegions::bytes(&layout(weight).shard_planes(orientation))
            }
            Self::Published(weight, orientation) => {
                PlaneRegions::bytes(&layout(weight).published_planes(orientation))
            }
            Self::Gathered(weight, orientation) => {
                PlaneRegions::bytes(&layout(weight).gathered_planes(orientation))
            }
            Self::Transposed(weight) => PlaneRegions::bytes(&layout(weight).transposed_planes()),
            Self::Dense(weight, _, values) => {
                layout(weight).shard.shape.elements().saturating_mul(values.bytes())
            }
            Self::Gradient(weight, _) | Self::Round(weight, _) => {
                f32s(layout(weight).shard.padded().elements())
            }
            Self::WireGradient(weight, _) => {
                layout(weight).shard.padded().elements().saturating_mul(ElementType::Bf16.bytes())
            }
            Self::QuantizedGradient(weight, _) => {
                WireType::Mxfp8.bytes(layout(weight).shard.padded().elements())
            }
            Self::ReceivedGradient(weight, _, element) => {
                let (group, slice) = summed(weight, LevelId::at(0));
                let received = received_slices(weights.mesh, group);
                element.bytes(slice).saturating_mul(received)
            }
            Self::PartialGradient(weight, _, level, element) => {
                let (group, slice) = summed(weight, level);
                element.bytes(slice).saturating_mul(weights.mesh.slices(group) as usize)
            }
            Self::ReceivedPartial(weight, _, level, element) => {
                let (group, slice) = summed(weight, level);
                let received = received_slices(weights.mesh, group);
                element.bytes(slice).saturating_mul(received)
            }
            Self::AmaxHistory(bucket) => {
                let length = weights.state.delayed.map_or(0, |delayed| delayed.history as usize);
                f32s(weights.bucket(bucket).weights.len().saturating_mul(length))
            }
            Self::TensorScale(bucket)
            | Self::LocalAmax(bucket)
            | Self::ReducedAmax(bucket)
            | Self::DelayedScale(bucket) => f32s(weights.bucket(bucket).weights.len()),
            Self::BlockAmax(bucket) => blocks(bucket, Format::amax_blocks),
            Self::Encode(bucket) => blocks(bucket, Format::encode_blocks),
            Self::OptimizerStep | Self::FaultWord | Self::LossScale | Self::GradientScale => f32s(1),
            Self::Hyperparameters => {
                size_of::<Hyperparameters>().saturating_mul(weights.layouts.len().max(1))
            }
            Self::Buffer(buffer) | Self::Staging(buffer, _) => buffer_bytes(buffer),
            Self::Squares(weight) => {
                let sums = layout(weight).stored_elements().div_ceil(SQUARED_TOGETHER);
                sums.saturating_mul(size_of::<f64>())
            }
            Self::NormRecord => size_of::<NormRecord>(),
            Self::NormRecords => size_of::<NormRecord>().saturating_mul(weights.mesh.ranks() as usize),
            Self::Vote => size_of::<Vote>(),
        }
    }
}

/// How many slices a rank gets of the others when the ranks of a group exchange gradients.
const fn received_slices(mesh: Mesh, group: Group) -> usize {
    mesh.slices(group) as usize * (mesh.size(group) as usize).saturating_sub(1)
}
