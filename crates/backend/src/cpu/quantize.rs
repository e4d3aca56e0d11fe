//! Masters into quantized shards: amax, scale, cast.
//!
//! Law: the format crate defines the numbers. A format without blocks or without a tensor amax passes through
//! with empty slices; nothing here distinguishes formats.

use std::sync::atomic::{AtomicBool, Ordering};

use super::memory::Arena;
use super::op_error::OpError;
use super::skip::skips;
use crate::local::{AmaxPart, FusedScale, PartialAmax, PartialCast};
use warpweft_format::FormatError;

/// Amaxes of the masters, per block and per tensor.
pub(super) fn partial_amax(op: &PartialAmax, arena: &Arena) -> Result<(), OpError> {
    if skips(arena, op.vote)? {
        return Ok(());
    }
    let mut block_amax = arena.write::<f32>(op.block_amax)?;
    let mut tensor_amax = arena.write::<f32>(op.tensor_amax)?;
    block_amax.fill(0.0);
    tensor_amax.fill(0.0);
    for AmaxPart { position, master, shape, blocks, .. } in &op.parts {
        let master = arena.read::<f32>(*master)?;
        let blocks = (blocks.orientation, &mut block_amax[blocks.real.clone()]);
        let amax = warpweft_format::partial_amax(op.format, blocks.0, op.via, *shape, &master, blocks.1)?;
        let tensor = &mut tensor_amax[*position];
        *tensor = tensor.max(amax);
    }
    Ok(())
}

/// Scales of every block, from its amax and the tensor's. A tensor whose amax has no scale keeps its own, and
/// `diverged` says so.
pub(super) fn fused_scale(op: &FusedScale, arena: &Arena, diverged: &AtomicBool) -> Result<(), OpError> {
    if skips(arena, op.vote)? {
        return Ok(());
    }
    let block_amax = arena.read::<f32>(op.block_amax)?;
    let tensor_amax = arena.read::<f32>(op.tensor_amax)?;
    let mut encode = arena.write::<f32>(op.encode)?;
    let mut tensor_scale = arena.write::<f32>(op.tensor_scale)?;
    for part in &op.parts {
        let mut scale_plane = arena.write::<u8>(part.scale_plane)?;
        let amaxes = tensor_amax.get(part.scaled_with.clone()).unwrap_or_default();
        let amax = amaxes.iter().copied().reduce(f32::max).unwrap_or_default();
        let scale = warpweft_format::fused_scale(
            op.format,
            part.orientation,
            part.shape,
            &block_amax[part.amaxes.clone()],
            amax,
            &mut encode[part.factors.clone()],
            &mut scale_plane,
        );
        match scale {
            Ok(scale) => tensor_scale[part.position] = scale,
            Err(FormatError::NonFiniteAmax { .. }) => diverged.store(true, Ordering::SeqCst),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The masters' codes.
pub(super) fn partial_cast(op: &PartialCast, arena: &Arena) -> Result<(), OpError> {
    if skips(arena, op.vote)? {
        return Ok(());
    }
    let encode = op.encode.map(|region| arena.read::<f32>(region)).transpose()?;
    let encode = encode.as_deref().unwrap_or_default();
    for part in &op.parts {
        let master = arena.read::<f32>(part.master)?;
        let factors = encode.get(part.factors.clone()).unwrap_or_default();
        let mut data = arena.write::<u8>(part.data_plane)?;
        warpweft_format::partial_cast(
            op.format,
            part.orientation,
            op.via,
            part.shape,
            &master,
            factors,
            &mut data,
        )?;
    }
    Ok(())
}
