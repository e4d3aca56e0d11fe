//! Planes into other planes and into values: transpose and dequantize, one weight at a time.
//!
//! Law: planes are those of the weight's own shape, at the start of slots that may be laid out for
//! a padded one; the padding of a gather is never looked at.

use super::Refusal;
use super::binder::Binder;
use crate::compute::bound_planes;
use crate::format::{ElementType, Format, Orientation, Shape};
use crate::id::SlotId;
use crate::layout::{PlaneRegions, Region, WeightLayout};
use crate::op::{DequantizePart, TransposePart};

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
pub(in crate::backend) struct Transpose {
    pub(in crate::backend) format: Format,
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) from: PlaneRegions,
    pub(in crate::backend) to: PlaneRegions,
}

impl Transpose {
    pub(super) fn resolve(binder: &Binder<'_>, part: &TransposePart) -> Result<Self, Refusal> {
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

/// f32 or bf16 values from planes.
#[derive(Debug)]
pub(in crate::backend) struct Dequantize {
    pub(in crate::backend) format: Format,
    pub(in crate::backend) orientation: Orientation,
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) from: PlaneRegions,
    pub(in crate::backend) tensor_scale: Option<Region>,
    pub(in crate::backend) values: ElementType,
    pub(in crate::backend) to: Region,
}

impl Dequantize {
    pub(super) fn resolve(binder: &Binder<'_>, part: &DequantizePart) -> Result<Self, Refusal> {
        let DequantizePart { weight, orientation, values, from, tensor_scale, to } = *part;
        let layout = binder.weight(weight)?;
        let shape = layout.shard.shape;
        let scale = |slot| {
            let all = binder.elements::<f32>(slot, layout.position + 1)?;
            let own = all.part(layout.position * size_of::<f32>(), size_of::<f32>());
            own.ok_or_else(|| format!("no tensor scale for {}", layout.name))
        };
        Ok(Self {
            format: layout.format,
            orientation,
            shape,
            from: planes_in(binder, from, layout, orientation)?,
            tensor_scale: tensor_scale.map(scale).transpose()?,
            values,
            to: match values {
                ElementType::F32 => binder.elements::<f32>(to, shape.elements())?,
                ElementType::Bf16 => binder.elements::<half::bf16>(to, shape.elements())?,
                ElementType::U8 | ElementType::U32 => {
                    return Err(format!("a weight is dequantized to f32 or bf16, not to {values}"));
                }
            },
        })
    }
}
