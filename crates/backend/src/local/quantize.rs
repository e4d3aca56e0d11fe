//! Masters into quantized shards: amax, scale, cast. Multi-tensor ops over one bucket.
//!
//! Laws:
//! - Only a rank's real rows are read. Block amaxes, scales and codes of the stored rows
//!   beyond them are zero.
//! - Block amaxes and encode factors are packed as [`warpweft_plan::layout::Weights::block_sizes`] says:
//!   weight after weight, stored orientation after stored orientation, each with the blocks of the
//!   *stored* shape; the real ones come first.
//! - A format without blocks or without a tensor amax passes through with empty ranges; nothing here
//!   distinguishes formats.

use std::ops::Range;

use super::Refusal;
use super::binder::Binder;
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{Format, Orientation, PlaneSpec, Shape, Via};
use warpweft_plan::layout::{PlaneRegions, Region};
use warpweft_plan::op::ShardOperand;

/// The blocks of one stored orientation of one weight inside a packed slot.
#[derive(Clone, Debug)]
pub struct Blocks {
    pub(crate) weight: WeightId,
    pub orientation: Orientation,
    /// Blocks of the stored rows.
    pub stored: Range<usize>,
    /// Blocks of the real rows.
    pub(crate) real: Range<usize>,
}

/// All blocks of a bucket, in their packed order.
fn packed(
    binder: &Binder<'_>,
    bucket: BucketId,
    count: fn(Format, Orientation, Shape) -> usize,
) -> Result<Vec<Blocks>, Refusal> {
    let mut all = Vec::new();
    let mut begin = 0;
    for weight in &binder.bucket(bucket)?.weights {
        let layout = binder.weight(*weight)?;
        for orientation in layout.format.stored_orientations() {
            let stored = begin..begin + count(layout.format, *orientation, layout.shard.stored());
            let real = begin..begin + count(layout.format, *orientation, real_shape(binder, *weight)?);
            begin = stored.end;
            all.push(Blocks { weight: *weight, orientation: *orientation, stored, real });
        }
    }
    Ok(all)
}

/// Values in a packed slot.
fn length(blocks: &[Blocks]) -> usize {
    blocks.last().map_or(0, |last| last.stored.end.max(last.real.end))
}

/// The blocks of one shard.
fn blocks_of(binder: &Binder<'_>, blocks: &[Blocks], shard: &ShardOperand) -> Result<Range<usize>, Refusal> {
    // Packed in the bucket's order, all orientations of a weight together.
    let layout = binder.weight(shard.weight)?;
    let first = layout.position * layout.format.stored_orientations().len();
    let of_weight = blocks.iter().skip(first).take_while(|part| part.weight == shard.weight);
    let found = of_weight.into_iter().find(|part| part.orientation == shard.orientation);
    let found =
        found.ok_or_else(|| format!("{} {} is no shard of the bucket", shard.weight, shard.orientation))?;
    Ok(found.real.clone())
}

/// Shape of the rows of `weight` that are real on this rank.
pub(super) fn real_shape(binder: &Binder<'_>, weight: WeightId) -> Result<Shape, Refusal> {
    let shard = binder.weight(weight)?.shard;
    Ok(Shape { rows: shard.rows_of(binder.binding.rank).rows, cols: shard.shape.cols })
}

/// The real rows of the masters of a bucket, in bucket order.
fn real_masters(binder: &Binder<'_>, bucket: BucketId, masters: &[SlotId]) -> Result<Vec<Region>, Refusal> {
    let weights = &binder.bucket(bucket)?.weights;
    if weights.len() != masters.len() {
        return Err(format!("{} masters for a bucket of {} weights", masters.len(), weights.len()));
    }
    let real = |(weight, slot): (&WeightId, &SlotId)| {
        binder.elements::<f32>(*slot, binder.real_elements(binder.weight(*weight)?))
    };
    weights.iter().zip(masters).map(real).collect()
}

/// The planes of a shard that hold its real rows.
pub(super) fn real_planes(binder: &Binder<'_>, shard: &ShardOperand) -> Result<PlaneRegions, Refusal> {
    let layout = binder.weight(shard.weight)?;
    let stored = layout.shard_planes(shard.orientation);
    let slot = binder.bytes(shard.slot, PlaneRegions::bytes(&stored))?;
    let placed = PlaneRegions::within(slot, &stored);
    let real = layout.format.compact_planes(shard.orientation, real_shape(binder, shard.weight)?);
    let size = |position: usize| real.get(position).map_or(0, PlaneSpec::bytes);
    let fit = |plane: Region, bytes: usize| {
        plane
            .part(0, bytes)
            .ok_or_else(|| format!("the shard of {} has more rows than it stores", shard.weight))
    };
    Ok(PlaneRegions { data: fit(placed.data, size(0))?, scale: fit(placed.scale, size(1))? })
}

/// Amaxes of the masters, per block and per tensor.
#[derive(Debug)]
pub struct PartialAmax {
    pub format: Format,
    pub via: Via,
    pub parts: Vec<AmaxPart>,
    pub block_amax: Region,
    pub tensor_amax: Region,
    pub vote: Option<Region>,
}

#[derive(Debug)]
pub struct AmaxPart {
    pub position: usize,
    pub master: Region,
    pub shape: Shape,
    /// Rows for which block amaxes are kept: the real ones and padding.
    pub stored_rows: usize,
    pub blocks: Blocks,
}

impl PartialAmax {
    pub fn resolve(
        binder: &Binder<'_>,
        bucket: BucketId,
        masters: &[SlotId],
        block_amax: SlotId,
        tensor_amax: SlotId,
        vote: Option<Region>,
    ) -> Result<Self, Refusal> {
        let members = binder.bucket(bucket)?;
        let masters = real_masters(binder, bucket, masters)?;
        let blocks = packed(binder, bucket, Format::amax_blocks)?;
        let block_amax = binder.elements::<f32>(block_amax, length(&blocks))?;
        let mut parts = Vec::new();
        for blocks in blocks {
            let position = binder.weight(blocks.weight)?.position;
            let master = *masters.get(position).ok_or("a weight is outside of its bucket")?;
            parts.push(AmaxPart {
                position,
                master,
                shape: real_shape(binder, blocks.weight)?,
                stored_rows: binder.weight(blocks.weight)?.shard.stored().rows,
                blocks,
            });
        }
        Ok(Self {
            format: members.format,
            via: binder.binding.settings.via,
            parts,
            block_amax,
            tensor_amax: binder.elements::<f32>(tensor_amax, members.weights.len())?,
            vote,
        })
    }
}

/// Scales of every block, from its amax and the tensor's.
#[derive(Debug)]
pub struct FusedScale {
    pub format: Format,
    pub parts: Vec<ScalePart>,
    pub block_amax: Region,
    pub tensor_amax: Region,
    pub encode: Region,
    pub tensor_scale: Region,
    pub vote: Option<Region>,
}

#[derive(Debug)]
pub struct ScalePart {
    pub position: usize,
    /// Positions of the weights whose amaxes its scale is made of: [`Weights::scaled_with`].
    ///
    /// [`Weights::scaled_with`]: warpweft_plan::layout::Weights::scaled_with
    pub scaled_with: Range<usize>,
    pub orientation: Orientation,
    pub shape: Shape,
    pub amaxes: Range<usize>,
    pub factors: Range<usize>,
    pub scale_plane: Region,
}

impl FusedScale {
    /// `slots` are block amaxes, tensor amaxes, encode factors, tensor scales.
    pub(super) fn resolve(
        binder: &Binder<'_>,
        bucket: BucketId,
        slots: [SlotId; 4],
        shards: &[ShardOperand],
        vote: Option<Region>,
    ) -> Result<Self, Refusal> {
        let [block_amax, tensor_amax, encode, tensor_scale] = slots;
        let members = binder.bucket(bucket)?;
        let amaxes = packed(binder, bucket, Format::amax_blocks)?;
        let factors = packed(binder, bucket, Format::encode_blocks)?;
        let parts: Result<Vec<_>, Refusal> = shards
            .iter()
            .map(|shard| {
                Ok(ScalePart {
                    position: binder.weight(shard.weight)?.position,
                    scaled_with: binder.binding.weights.scaled_with(shard.weight),
                    orientation: shard.orientation,
                    shape: real_shape(binder, shard.weight)?,
                    amaxes: blocks_of(binder, &amaxes, shard)?,
                    factors: blocks_of(binder, &factors, shard)?,
                    scale_plane: real_planes(binder, shard)?.scale,
                })
            })
            .collect();
        Ok(Self {
            format: members.format,
            parts: parts?,
            block_amax: binder.elements::<f32>(block_amax, length(&amaxes))?,
            tensor_amax: binder.elements::<f32>(tensor_amax, members.weights.len())?,
            encode: binder.elements::<f32>(encode, length(&factors))?,
            tensor_scale: binder.elements::<f32>(tensor_scale, members.weights.len())?,
            vote,
        })
    }
}

/// The masters' codes.
#[derive(Debug)]
pub struct PartialCast {
    pub format: Format,
    pub via: Via,
    pub parts: Vec<CastPart>,
    pub encode: Option<Region>,
    pub vote: Option<Region>,
}

#[derive(Debug)]
pub struct CastPart {
    pub orientation: Orientation,
    pub shape: Shape,
    pub master: Region,
    pub factors: Range<usize>,
    pub data_plane: Region,
}

impl PartialCast {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        bucket: BucketId,
        masters: &[SlotId],
        encode: Option<SlotId>,
        shards: &[ShardOperand],
        vote: Option<Region>,
    ) -> Result<Self, Refusal> {
        let format = binder.bucket(bucket)?.format;
        let masters = real_masters(binder, bucket, masters)?;
        let factors = packed(binder, bucket, Format::encode_blocks)?;
        if encode.is_none() && length(&factors) > 0 {
            return Err(format!("a cast to {format} needs encode factors"));
        }
        let mut parts = Vec::new();
        for shard in shards {
            let position = binder.weight(shard.weight)?.position;
            parts.push(CastPart {
                orientation: shard.orientation,
                shape: real_shape(binder, shard.weight)?,
                master: *masters.get(position).ok_or("a shard's weight is outside of the bucket")?,
                factors: blocks_of(binder, &factors, shard)?,
                data_plane: real_planes(binder, shard)?.data,
            });
        }
        let encode = encode.map(|slot| binder.elements::<f32>(slot, length(&factors))).transpose()?;
        Ok(Self { format, via: binder.binding.settings.via, parts, encode, vote })
    }
}
