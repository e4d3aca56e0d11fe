//! One weight: its cut into shards, and its planes as shard, gathered and transposed.
//!
//! Law: planes follow from format and shard alone, and their places in a slot from the planes. A shard's
//! planes are compact, as they travel; gathered and transposed ones are padded, as a GEMM reads them.

use serde::Serialize;

use super::expert_number::ExpertNumber;
use super::region::{Region, aligned};
use crate::model::{ParameterGroup, Placement, Reuse, ShardLayout};
use warpweft_base::id::{BucketId, GroupId};
use warpweft_format::{ElementType, Format, Orientation, PlaneSpec};

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
    /// What the optimizer does differently for it.
    #[serde(skip_serializing_if = "ParameterGroup::is_default")]
    pub parameters: ParameterGroup,
    /// Whether it stays as it is: without moments, main grad and gradients.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub frozen: bool,
    /// The weights that it has a scale of the tensor with: see
    /// [`Weights::scaled_with`](crate::layout::Weights::scaled_with).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_group: Option<String>,
    /// Which of a rank's experts it belongs to, where these have axes of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expert: Option<ExpertNumber>,
}

impl WeightLayout {
    /// Planes of a rank's shard in `orientation`, or of its slice of that, as they are stored and travel: scale rows
    /// are not padded, and of rows that a format repeats only one is kept.
    #[must_use]
    pub fn shard_planes(&self, orientation: Orientation) -> Vec<PlaneSpec> {
        self.format.compact_planes(orientation, self.shard.stored())
    }

    /// The same of all slices of a shard one after the other.
    #[must_use]
    pub fn published_planes(&self, orientation: Orientation) -> Vec<PlaneSpec> {
        self.format.compact_planes(orientation, self.shard.published())
    }

    /// Bytes of its [`published_planes`](Self::published_planes) one after the other, as a rank sends them.
    #[must_use]
    pub fn published_bytes(&self, orientation: Orientation) -> usize {
        self.published_planes(orientation).iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add)
    }

    /// Whether each rank has a slice of its shard, which is published before it is gathered.
    #[must_use]
    pub const fn is_in_slices(&self) -> bool {
        self.shard.slices > 1
    }

    /// Bytes of a rank's shard in `orientation`: those of its [`shard_planes`](Self::shard_planes) one after
    /// the other, as a rank sends them.
    #[must_use]
    pub fn shard_bytes(&self, orientation: Orientation) -> usize {
        self.shard_planes(orientation).iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add)
    }

    /// Planes of all shards one after the other, padded as a GEMM wants them: what a gather fills.
    /// The planes of the weight's own shape are the first bytes of these.
    #[must_use]
    pub fn gathered_planes(&self, orientation: Orientation) -> Vec<PlaneSpec> {
        self.format.planes(orientation, self.shard.padded())
    }

    /// Bytes of its [`gathered_planes`](Self::gathered_planes) one after the other.
    #[must_use]
    pub fn gathered_bytes(&self, orientation: Orientation) -> usize {
        self.gathered_planes(orientation).iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add)
    }

    /// Columnwise planes of the weight's own shape: what a transpose fills.
    #[must_use]
    pub fn transposed_planes(&self) -> Vec<PlaneSpec> {
        self.format.planes(Orientation::Columnwise, self.shard.shape)
    }

    /// Whether the data plane already is what a dense use in `values` wants, so that nothing need be
    /// dequantized.
    #[must_use]
    pub fn is_dense(&self, values: ElementType) -> bool {
        matches!((self.format, values), (Format::F32, ElementType::F32) | (Format::Bf16, ElementType::Bf16))
    }

    /// Whether it is its quantized planes alone, without a master: [`Placement::is_planes_alone`].
    #[must_use]
    pub const fn is_planes_alone(&self) -> bool {
        self.placement.is_planes_alone(self.frozen)
    }

    /// f32 elements of the rank's stored rows. Saturates.
    #[must_use]
    pub fn stored_elements(&self) -> usize {
        self.shard.stored().elements()
    }
}

/// The planes of one orientation inside a slot: data first, scales after it, both aligned.
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
