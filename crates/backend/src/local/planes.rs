//! Planes turned into other planes and into values: transpose and dequantize, one weight at a time.
//!
//! Law: planes are those of the weight's own shape, at the start of slots that may be laid out for a padded
//! one; the padding of a gather is never read. Rows that arrived and were not assembled are dequantized
//! where they are: up to three stretches of rows, of which the rank's own one is in its shard.

use super::Refusal;
use super::binder::Binder;
use super::collective::{Gathered, gathered};
use warpweft_base::id::SlotId;
use warpweft_format::{ElementType, Format, Orientation, PlaneSpec, Shape};
use warpweft_plan::compute::bound_planes;
use warpweft_plan::layout::{PlaneRegions, Region, WeightLayout};
use warpweft_plan::op::{DequantizePart, GatherPart, TransposePart};

/// The planes of the weight's own shape in a gathered or transposed slot.
fn planes_in(
    binder: &Binder<'_>,
    slot: SlotId,
    layout: &WeightLayout,
    orientation: Orientation,
) -> Result<PlaneRegions, Refusal> {
    let region = binder.region(slot)?;
    let planes = bound_planes(region, layout, orientation);
    if planes.data.end().max(planes.scale.end()) > region.end() {
        return Err(format!("slot {slot} is too small for the {orientation} planes of {}", layout.name));
    }
    Ok(planes)
}

/// Columnwise planes from gathered rowwise ones.
#[derive(Debug)]
pub struct Transpose {
    pub format: Format,
    pub shape: Shape,
    pub from: PlaneRegions,
    pub to: PlaneRegions,
}

impl Transpose {
    pub fn resolve(binder: &Binder<'_>, part: &TransposePart) -> Result<Self, Refusal> {
        let TransposePart { weight, from, to } = *part;
        let layout = binder.weight(weight)?;
        layout.format.derives_columnwise().map_err(|error| error.to_string())?;
        let columnwise = layout.transposed_planes();
        Ok(Self {
            format: layout.format,
            shape: layout.shard.shape,
            from: planes_in(binder, from, layout, Orientation::Rowwise)?,
            to: PlaneRegions::within(binder.bytes(to, PlaneRegions::bytes(&columnwise))?, &columnwise),
        })
    }
}

/// f32 or bf16 values of a stretch of rows; of all rows where planes are whole.
#[derive(Debug)]
pub struct Dequantize {
    pub format: Format,
    pub orientation: Orientation,
    /// The shape of the stretch.
    pub shape: Shape,
    /// Its rows of the planes.
    pub from: PlaneRegions,
    /// Whether scale rows that a format repeats are stored once.
    pub compact: bool,
    pub tensor_scale: Option<Region>,
    pub values: ElementType,
    pub to: Region,
}

impl Dequantize {
    /// What is done for one part: one stretch where planes are whole.
    pub(super) fn resolve(binder: &Binder<'_>, part: &DequantizePart) -> Result<Vec<Self>, Refusal> {
        let DequantizePart { weight, orientation, values, from, own, tensor_scale, to } = *part;
        let layout = binder.weight(weight)?;
        let shape = layout.shard.shape;
        let scale = |slot| {
            let all = binder.elements::<f32>(slot, layout.position + 1)?;
            let own = all.part(layout.position * size_of::<f32>(), size_of::<f32>());
            own.ok_or_else(|| format!("no tensor scale for {}", layout.name))
        };
        let tensor_scale = tensor_scale.map(scale).transpose()?;
        let to = match values {
            ElementType::F32 => binder.elements::<f32>(to, shape.elements())?,
            ElementType::Bf16 => binder.elements::<half::bf16>(to, shape.elements())?,
            ElementType::U8 | ElementType::U32 => {
                return Err(format!("a weight is dequantized to f32 or bf16, not to {values}"));
            }
        };
        let format = layout.format;
        let whole =
            |from| Self { format, orientation, shape, from, compact: false, tensor_scale, values, to };
        let Some(own) = own else {
            return Ok(vec![whole(planes_in(binder, from, layout, orientation)?)]);
        };
        let part = GatherPart { weight, orientation, from: own, to: from };
        let row = shape.cols.saturating_mul(values.bytes());
        let mut stretches = Vec::with_capacity(3);
        for Stretch { begin, rows, from } in stretches_of(binder, layout, &part)? {
            let to = to.part(begin.saturating_mul(row), rows.saturating_mul(row));
            let to = to.ok_or_else(|| format!("rows of {} beyond its values", layout.name))?;
            let shape = Shape::new(rows, shape.cols);
            stretches.push(Self { shape, compact: true, to, ..whole(from) });
        }
        Ok(stretches)
    }
}

/// Consecutive rows of a weight.
struct Stretch {
    begin: usize,
    rows: usize,
    from: PlaneRegions,
}

/// The rows of the ranks before this one, its own, and those of the ranks after it, without rows beyond the
/// weight's own.
fn stretches_of(
    binder: &Binder<'_>,
    layout: &WeightLayout,
    part: &GatherPart,
) -> Result<Vec<Stretch>, Refusal> {
    if part.orientation != Orientation::Rowwise {
        return Err(format!("rows of {} planes do not stand alone", part.orientation));
    }
    let Gathered { planes, places: (own, all), .. } = gathered(binder, part)?;
    let shape = layout.shard.shape;
    let row_of = |shard: usize| layout.shard.rows_per_rank.saturating_mul(shard).min(shape.rows);
    let mut stretches = Vec::with_capacity(3);
    for (shards, is_own) in [(0..own, false), (own..own + 1, true), (own + 1..all, false)] {
        let (begin, end) = (row_of(shards.start), row_of(shards.end));
        let rows = end.saturating_sub(begin);
        if rows == 0 {
            continue;
        }
        let sizes = layout.format.compact_planes(part.orientation, Shape::new(rows, shape.cols));
        let mut regions = [Region::default(); 2];
        for ((region, plane), size) in regions.iter_mut().zip(&planes).zip(sizes.iter().map(PlaneSpec::bytes))
        {
            let found = match is_own {
                true => plane.from.part(0, size),
                false => plane.to.part(plane.from.bytes.saturating_mul(shards.start), size),
            };
            *region = found.ok_or_else(|| format!("rows {begin}..{end} of {} do not fit", layout.name))?;
        }
        let [data, scale] = regions;
        stretches.push(Stretch { begin, rows, from: PlaneRegions { data, scale } });
    }
    Ok(stretches)
}
