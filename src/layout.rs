//! Where things lie: the arena, its slots, the lanes, the cut of weights into shards.
//!
//! Law: a layout is the same on every rank, and addresses follow from it alone: region =
//! offset from the start of a rank's arena. *Resident* slots never move for the life of a session,
//! across programs and plans; *transient* slots belong to one plan and may share bytes where the
//! plan orders their tenants. Nothing is allocated or moved after the arena is reserved.

mod state;

pub use state::{Delayed, StateLayout};

use serde::Serialize;

use crate::config::AdamMode;
use crate::format::{ElementType, Format, Orientation, PlaneSpec, Shape, Via};
use crate::id::{
    BucketId, BufferId, CallId, CommId, GroupId, LaneId, MicroBatchId, RankId, SlotId, WeightId,
};
use crate::model::{Call, Mesh, Placement, Reuse, ShardLayout, WeightSpec};
use crate::op::Op;

/// Every slot and every plane inside a slot begins at a multiple of this many bytes: enough for
/// vector loads, copy engines and tensor-core descriptors.
pub const ALIGNMENT: usize = 256;

/// The most bytes an arena can have: pointers inside of one allocation are no further apart.
pub const MAX_ARENA: usize = isize::MAX as usize;

/// What `bytes` bytes take in the arena: rounded up to [`ALIGNMENT`]. Saturates.
#[must_use]
pub const fn aligned(bytes: usize) -> usize {
    match bytes.checked_next_multiple_of(ALIGNMENT) {
        Some(aligned) => aligned,
        None => usize::MAX,
    }
}

/// A range of bytes, counted from the start of a rank's arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Region {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl Region {
    /// One byte past the last.
    #[must_use]
    pub const fn end(self) -> usize {
        self.offset + self.bytes
    }

    /// Do the two share a byte?
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.offset < other.end() && other.offset < self.end()
    }

    /// `bytes` bytes, `offset` bytes into this region; `None` if they do not fit.
    #[must_use]
    pub fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        (offset.checked_add(bytes)? <= self.bytes).then_some(Self { offset: self.offset + offset, bytes })
    }
}

/// Does a slot keep its place and content from step to step?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Residency {
    /// For the session's life.
    Resident,
    /// For one interval of one plan.
    Transient,
}

/// What a slot is for. Sizes follow from it (see [`Content::bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Content {
    /// FP32 master of the rank's rows, f32 `[rows_per_rank, cols]`.
    Master(WeightId),
    /// The lower halves of masters whose upper halves are the rank's bf16 shard, i16
    /// `[rows_per_rank, cols]`: see [`crate::format::split_master`].
    MasterRemainder(WeightId),
    /// First Adam moment, shaped as the master, in the element type of [`StateLayout::moments`].
    ExpAvg(WeightId),
    /// Second Adam moment, as the first.
    ExpAvgSq(WeightId),
    /// FP32 main grad of the rank's rows, shaped as the master.
    MainGrad(WeightId),
    /// A rank's own sum of gradients of a replicated weight, before the all-reduce.
    LocalGrad(WeightId),
    /// The rank's quantized rows in one stored orientation: data plane, then scale plane.
    Shard(WeightId, Orientation),
    /// What dequantizing needs beside the planes, f32, one per weight of the bucket.
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
    /// Learning rate of the coming step, one f32, written by the trainer.
    LearningRate,
    /// Loss scale of the coming step, one f32, written by the trainer.
    LossScale,
    /// Amax of the rank's rows, f32, one per weight of the bucket.
    LocalAmax(BucketId),
    /// The maximum of the ranks' amaxes, f32, one per weight of the bucket.
    ReducedAmax(BucketId),
    /// Amax of every block of the rank's rows, f32, weight after weight, orientation after
    /// orientation.
    BlockAmax(BucketId),
    /// The factor the cast multiplies every block with, ordered as the amaxes.
    Encode(BucketId),
    /// A gathered weight: planes of the padded shape, rowwise or columnwise.
    Gathered(WeightId, Orientation),
    /// Columnwise planes derived from gathered rowwise ones.
    Transposed(WeightId),
    /// A dequantized weight: f32 or bf16 `[rows, cols]`, or its transpose for a columnwise use.
    Dense(WeightId, Orientation, ElementType),
    /// The full gradient of one weight from one call: f32 `[padded rows, cols]`.
    Gradient(WeightId, CallId),
    /// That gradient, or the sum it begins, as it travels: bf16 `[padded rows, cols]`.
    WireGradient(WeightId, CallId),
    /// The rank's rows of that gradient, summed over ranks: f32 `[rows_per_rank, cols]`.
    ReducedGradient(WeightId, CallId),
    /// A declared buffer.
    Buffer(BufferId),
    /// The place between trainer and plan for an input or output of one micro-batch.
    Staging(BufferId, MicroBatchId),
    /// A rank's [`crate::op::NormRecord`].
    NormRecord,
    /// Every rank's [`crate::op::NormRecord`], in rank order.
    NormRecords,
    /// The [`crate::op::Vote`] of the step.
    Vote,
}

/// A piece of the arena with one content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Slot {
    /// Unique readable name, such as `blocks.0.up gathered for call 3`.
    pub name: String,
    /// What lies in it.
    pub content: Content,
    /// Resident or transient.
    pub residency: Residency,
    /// Where it lies.
    pub region: Region,
}

/// The arena of one rank; byte-equal on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ArenaLayout {
    /// All slots, in the order of their ids; resident ones first.
    pub slots: Vec<Slot>,
    /// Bytes of the resident region, which begins at offset 0.
    pub resident_bytes: usize,
    /// Bytes of the transient region, which follows.
    pub transient_bytes: usize,
}

impl ArenaLayout {
    /// The slot behind an id of this layout.
    ///
    /// # Panics
    /// When the id belongs to another layout.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> &Slot {
        &self.slots[slot.index()]
    }

    /// Where a slot lies.
    ///
    /// # Panics
    /// When the id belongs to another layout.
    #[must_use]
    pub fn region(&self, slot: SlotId) -> Region {
        self.slots[slot.index()].region
    }

    /// Every slot with its id.
    pub fn entries(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().enumerate().map(|(position, slot)| (SlotId::at(position), slot))
    }

    /// The first slot with this content.
    #[must_use]
    pub fn find(&self, content: Content) -> Option<SlotId> {
        self.slots.iter().position(|slot| slot.content == content).map(SlotId::at)
    }

    /// Size of the whole arena.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.resident_bytes + self.transient_bytes
    }
}

/// What a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum LaneKind {
    /// The embedder's closures, and what they wait for directly.
    Compute,
    /// Quantize, transpose, accumulate, norm, optimizer.
    Quantize,
    /// The collectives of one communicator.
    Communicator(CommId),
}

impl std::fmt::Display for LaneKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compute => formatter.write_str("compute"),
            Self::Quantize => formatter.write_str("quantize"),
            Self::Communicator(comm) => write!(formatter, "{comm}"),
        }
    }
}

/// One lane of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Lane {
    /// Its number.
    pub id: LaneId,
    /// What it carries.
    pub kind: LaneKind,
}

/// One weight as a backend needs to know it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct WeightLayout {
    /// Name, for messages.
    pub name: String,
    /// Format of shards and gathered planes.
    pub format: Format,
    /// Sharded or replicated.
    pub placement: Placement,
    /// The cut into shards.
    pub shard: ShardLayout,
    /// The bucket that owns it.
    pub bucket: BucketId,
    /// Its position in that bucket.
    pub position: usize,
    /// Whether its uses find planes that earlier uses gathered.
    pub reuse: Option<Reuse>,
    /// The group it is gathered and reduced with.
    pub group: Option<GroupId>,
}

/// A set of weights of one format and placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Bucket {
    /// Format of all its weights.
    pub format: Format,
    /// Placement of all its weights.
    pub placement: Placement,
    /// The weights, in id order.
    pub weights: Vec<WeightId>,
}

impl Bucket {
    /// Do its quantized planes come with scales, so that amax and scale precede the cast?
    #[must_use]
    pub fn has_scales(&self) -> bool {
        !matches!(self.format, Format::F32 | Format::Bf16)
    }
}

/// Weights grouped into buckets; the common ground of all programs of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Weights {
    /// Layout of every weight, in id order.
    pub layouts: Vec<WeightLayout>,
    /// Buckets, in order of their first weight.
    pub buckets: Vec<Bucket>,
    /// The ranks.
    pub mesh: Mesh,
    /// How optimizer state lies in memory.
    pub state: StateLayout,
}

impl Weights {
    /// One bucket for every format and placement that occurs; optimizer state in f32.
    #[must_use]
    pub fn new(specs: &[WeightSpec], mesh: Mesh) -> Self {
        let state = StateLayout::default();
        let mut weights = Self { layouts: Vec::new(), buckets: Vec::new(), mesh, state };
        for (number, spec) in specs.iter().enumerate() {
            let same = |bucket: &Bucket| bucket.format == spec.format && bucket.placement == spec.placement;
            let bucket = weights.buckets.iter().position(same).unwrap_or_else(|| {
                weights.buckets.push(Bucket {
                    format: spec.format,
                    placement: spec.placement,
                    weights: Vec::new(),
                });
                weights.buckets.len() - 1
            });
            weights.layouts.push(WeightLayout {
                name: spec.name.clone(),
                format: spec.format,
                placement: spec.placement,
                shard: ShardLayout::new(spec, mesh),
                bucket: BucketId::at(bucket),
                position: weights.buckets[bucket].weights.len(),
                reuse: spec.reuse,
                group: spec.group,
            });
            weights.buckets[bucket].weights.push(WeightId::at(number));
        }
        weights
    }

    /// The same weights with optimizer state laid out as `state` says.
    #[must_use]
    pub fn with_state(self, state: StateLayout) -> Self {
        Self { state, ..self }
    }

    /// The layout of one weight.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn layout(&self, weight: WeightId) -> &WeightLayout {
        &self.layouts[weight.index()]
    }

    /// One bucket.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn bucket(&self, bucket: BucketId) -> &Bucket {
        &self.buckets[bucket.index()]
    }

    /// Every bucket with its id.
    pub fn entries(&self) -> impl Iterator<Item = (BucketId, &Bucket)> {
        self.buckets.iter().enumerate().map(|(position, bucket)| (BucketId::at(position), bucket))
    }
}

/// The planes of one orientation inside a slot: data first, scales behind it, both aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneRegions {
    /// Codes or values.
    pub data: Region,
    /// Decode scales; empty for formats without.
    pub scale: Region,
}

impl PlaneRegions {
    /// Places `planes` at the start of `region`.
    #[must_use]
    pub fn within(region: Region, planes: &[PlaneSpec]) -> Self {
        let size = |position: usize| planes.get(position).map_or(0, PlaneSpec::bytes);
        let data = Region { offset: region.offset, bytes: size(0) };
        let scale = Region { offset: region.offset.saturating_add(aligned(size(0))), bytes: size(1) };
        Self { data, scale }
    }

    /// Bytes that `planes` take inside a slot. Saturates.
    #[must_use]
    pub fn bytes(planes: &[PlaneSpec]) -> usize {
        planes.iter().fold(0, |sum, plane| sum.saturating_add(aligned(plane.bytes())))
    }
}

impl WeightLayout {
    /// Planes of a rank's shard in `orientation`, as they are stored and travel: scale rows are not
    /// padded, and of rows that a format repeats only one is kept.
    #[must_use]
    pub fn shard_planes(&self, orientation: Orientation) -> Vec<PlaneSpec> {
        self.format.compact_planes(orientation, self.shard.stored())
    }

    /// Planes of all shards one after the other, padded as a GEMM wants them: what a gather fills.
    /// The planes of the weight's own shape are the first bytes of these.
    #[must_use]
    pub fn gathered_planes(&self, orientation: Orientation) -> Vec<PlaneSpec> {
        self.format.planes(orientation, self.shard.padded())
    }

    /// Columnwise planes of the weight's own shape: what a transpose fills.
    #[must_use]
    pub fn transposed_planes(&self) -> Vec<PlaneSpec> {
        self.format.planes(Orientation::Columnwise, self.shard.shape)
    }

    /// Is the data plane already what a dense use in `values` wants, so that nothing need be dequantized?
    #[must_use]
    pub fn is_dense(&self, values: ElementType) -> bool {
        matches!((self.format, values), (Format::F32, ElementType::F32) | (Format::Bf16, ElementType::Bf16))
    }

    /// f32 elements of the rank's stored rows. Saturates.
    #[must_use]
    pub fn stored_elements(&self) -> usize {
        self.shard.stored().elements()
    }
}

impl Content {
    /// Size of a slot with this content, for the weights and buffers given. Saturates; planning
    /// refuses slots for which it would.
    #[must_use]
    pub fn bytes(self, weights: &Weights, buffer_bytes: impl Fn(BufferId) -> usize) -> usize {
        let layout = |weight: WeightId| weights.layout(weight);
        let f32s = |elements: usize| elements.saturating_mul(ElementType::F32.bytes());
        let stored = |weight, bytes| layout(weight).stored_elements().saturating_mul(bytes);
        let blocks = |bucket, count: fn(Format, Orientation, Shape) -> usize| {
            f32s(weights.block_sizes(bucket, count).fold(0, usize::saturating_add))
        };
        match self {
            Self::ExpAvg(weight) | Self::ExpAvgSq(weight) => stored(weight, weights.state.moment_bytes()),
            Self::MasterRemainder(weight) => stored(weight, size_of::<i16>()),
            Self::Master(weight)
            | Self::MainGrad(weight)
            | Self::LocalGrad(weight)
            | Self::ReducedGradient(weight, _) => f32s(layout(weight).stored_elements()),
            Self::Shard(weight, orientation) => {
                PlaneRegions::bytes(&layout(weight).shard_planes(orientation))
            }
            Self::Gathered(weight, orientation) => {
                PlaneRegions::bytes(&layout(weight).gathered_planes(orientation))
            }
            Self::Transposed(weight) => PlaneRegions::bytes(&layout(weight).transposed_planes()),
            Self::Dense(weight, _, values) => {
                layout(weight).shard.shape.elements().saturating_mul(values.bytes())
            }
            Self::Gradient(weight, _) => f32s(layout(weight).shard.padded().elements()),
            Self::WireGradient(weight, _) => {
                layout(weight).shard.padded().elements().saturating_mul(ElementType::Bf16.bytes())
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
            Self::OptimizerStep | Self::FaultWord | Self::LearningRate | Self::LossScale => f32s(1),
            Self::Buffer(buffer) | Self::Staging(buffer, _) => buffer_bytes(buffer),
            Self::NormRecord => size_of::<crate::op::NormRecord>(),
            Self::NormRecords => {
                size_of::<crate::op::NormRecord>().saturating_mul(weights.mesh.ranks() as usize)
            }
            Self::Vote => size_of::<crate::op::Vote>(),
        }
    }
}

impl Weights {
    /// `count` of every weight of a bucket and every stored orientation, in the order in which
    /// block amaxes and encode factors are packed.
    pub fn block_sizes(
        &self,
        bucket: BucketId,
        count: fn(Format, Orientation, Shape) -> usize,
    ) -> impl Iterator<Item = usize> {
        self.bucket(bucket).weights.iter().flat_map(move |weight| {
            let layout = self.layout(*weight);
            layout
                .format
                .stored_orientations()
                .iter()
                .map(move |orientation| count(layout.format, *orientation, layout.shard.stored()))
        })
    }
}

/// The optimizer's constants; what changes from step to step lies in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OptimizerSettings {
    /// How weight decay enters.
    pub mode: AdamMode,
    /// Decay of the first moment, β1.
    pub beta1: f32,
    /// Decay of the second moment, β2.
    pub beta2: f32,
    /// ε, added after the square root of the corrected second moment.
    pub epsilon: f32,
    /// Weight decay, λ.
    pub weight_decay: f32,
    /// Are the moments divided by `1 − β^t`?
    pub bias_correction: bool,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub max_norm: f32,
}

/// Constants of a plan that backends need and the planner does not interpret.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Rounding of masters before amax and cast.
    pub via: Via,
    /// Optimizer constants.
    pub optimizer: OptimizerSettings,
}

/// Everything a backend needs to turn a plan's ops into launches on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'plan> {
    /// The rank to bind for.
    pub rank: RankId,
    /// Slots and their places.
    pub arena: &'plan ArenaLayout,
    /// Weights, buckets and mesh.
    pub weights: &'plan Weights,
    /// How often the step repeats the program's calls.
    pub micro_batches: u32,
    /// The calls of the step.
    pub calls: &'plan [Call],
    /// The ops in issue order, each with its lane.
    pub ops: &'plan [(Op, LaneId)],
    /// Number of events that fences of the plan wait for.
    pub events: usize,
    /// Constants.
    pub settings: Settings,
}
