//! Assemble, transpose and dequantize: planes made whole, or turned into other planes and values.

use super::memory::{Arena, BorrowError, ReadSlice};
use super::op_error::OpError;
use crate::local::{Assemble, Dequantize, Transpose};
use warpweft_format::{ElementType, Planes, PlanesMut};
use warpweft_plan::layout::PlaneRegions;

/// Both planes, for reading.
fn read(arena: &Arena, regions: PlaneRegions) -> Result<(ReadSlice<'_, u8>, ReadSlice<'_, u8>), BorrowError> {
    Ok((arena.read(regions.data)?, arena.read(regions.scale)?))
}

/// Whole planes from what a gather brought and what the rank has.
pub(super) fn assemble(op: &Assemble, arena: &Arena) -> Result<(), OpError> {
    op.own.iter().try_for_each(|part| arena.copy(part.from, part.to))?;
    op.zeros.iter().try_for_each(|region| arena.zero(*region))?;
    for spread in &op.spread {
        let mut plane = arena.write(spread.plane)?;
        warpweft_format::expand_scale(spread.format, spread.orientation, spread.shape, &mut plane)?;
    }
    Ok(())
}

/// Columnwise planes from gathered rowwise ones.
pub(super) fn transpose(op: &Transpose, arena: &Arena) -> Result<(), OpError> {
    let (data, scale) = read(arena, op.from)?;
    let (mut to_data, mut to_scale) = (arena.write(op.to.data)?, arena.write(op.to.scale)?);
    let rowwise = Planes { data: &data, scale: &scale };
    let columnwise = PlanesMut { data: &mut to_data, scale: &mut to_scale };
    Ok(warpweft_format::transpose(op.format, op.shape, rowwise, columnwise)?)
}

/// f32 or bf16 values from planes.
pub(super) fn dequantize(op: &Dequantize, arena: &Arena) -> Result<(), OpError> {
    let tensor_scale = match op.tensor_scale {
        None => 1.0,
        Some(region) => arena.read::<f32>(region)?.first().copied().unwrap_or(1.0),
    };
    let (data, scale) = read(arena, op.from)?;
    let planes = Planes { data: &data, scale: &scale };
    let Dequantize { format, orientation, shape, .. } = *op;
    match op.values {
        ElementType::Bf16 => {
            let mut out = arena.write::<half::bf16>(op.to)?;
            warpweft_format::dequantize_bf16(format, orientation, shape, planes, tensor_scale, &mut out)?;
        }
        ElementType::F32 | ElementType::U8 | ElementType::U32 => {
            let mut out = arena.write::<f32>(op.to)?;
            warpweft_format::dequantize(format, orientation, shape, planes, tensor_scale, &mut out)?;
        }
    }
    Ok(())
}
