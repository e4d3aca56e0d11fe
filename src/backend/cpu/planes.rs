//! Planes into other planes and into values: transpose and dequantize, one weight at a time.
//!
//! Law: planes are those of the weight's own shape, at the start of slots that may be laid out for
//! a padded one; the padding of a gather is never looked at.

use super::bind::{Binder, Refusal};
use super::memory::{Arena, BorrowError, ReadSlice};
use super::ops::OpError;
use crate::compute::bound_planes;
use crate::format::{Format, Orientation, Planes, PlanesMut, Shape, dequantize, transpose};
use crate::id::{SlotId, WeightId};
use crate::layout::{PlaneRegions, Region, WeightLayout};

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

/// Both planes, for reading.
fn read(arena: &Arena, regions: PlaneRegions) -> Result<(ReadSlice<'_, u8>, ReadSlice<'_, u8>), BorrowError> {
    Ok((arena.read(regions.data)?, arena.read(regions.scale)?))
}

/// Columnwise planes from gathered rowwise ones.
#[derive(Debug)]
pub(super) struct Transpose {
    format: Format,
    shape: Shape,
    from: PlaneRegions,
    to: PlaneRegions,
}

impl Transpose {
    pub(super) fn bind(
        binder: &Binder<'_>,
        weight: WeightId,
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
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

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let (data, scale) = read(arena, self.from)?;
        let (mut to_data, mut to_scale) = (arena.write(self.to.data)?, arena.write(self.to.scale)?);
        let rowwise = Planes { data: &data, scale: &scale };
        let columnwise = PlanesMut { data: &mut to_data, scale: &mut to_scale };
        Ok(transpose(self.format, self.shape, rowwise, columnwise)?)
    }
}

/// f32 values from planes.
#[derive(Debug)]
pub(super) struct Dequantize {
    format: Format,
    orientation: Orientation,
    shape: Shape,
    from: PlaneRegions,
    tensor_scale: Option<Region>,
    to: Region,
}

impl Dequantize {
    pub(super) fn bind(
        binder: &Binder<'_>,
        weight: WeightId,
        orientation: Orientation,
        from: SlotId,
        tensor_scale: Option<SlotId>,
        to: SlotId,
    ) -> Result<Self, Refusal> {
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
            to: binder.elements::<f32>(to, shape.elements())?,
        })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let tensor_scale = match self.tensor_scale {
            None => 1.0,
            Some(region) => arena.read::<f32>(region)?.first().copied().unwrap_or(1.0),
        };
        let (data, scale) = read(arena, self.from)?;
        let planes = Planes { data: &data, scale: &scale };
        let mut out = arena.write::<f32>(self.to)?;
        Ok(dequantize(self.format, self.orientation, self.shape, planes, tensor_scale, &mut out)?)
    }
}
