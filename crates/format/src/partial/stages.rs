//! Amax and cast of a flat shard. The scale stage is [`crate::fused_scale`] on the full shape.

use super::FlatShard;
use crate::FormatError;
use crate::format::Format;
use crate::kernels::{self, Slice};
use crate::shape::{Orientation, Shape};
use crate::stages::{check_length, check_stage};
use crate::via::Via;

/// Amax of every block of a weight of `shape` over the elements of `shard`, and of the shard.
///
/// `master` holds the shard's elements. `block_amax` has [`Format::amax_blocks`] entries for the *full*
/// shape; blocks without an element of the shard get 0. The maximum over the ranks is the amax of the weight.
///
/// # Errors
/// As [`crate::partial_amax`]; a shard out of range.
pub fn flat_amax(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    shard: FlatShard,
    master: &[f32],
    block_amax: &mut [f32],
) -> Result<f32, FormatError> {
    check_stage(format, orientation, shape)?;
    shard.check(shape)?;
    check_length("master", shard.len, master.len())?;
    check_length("block_amax", format.amax_blocks(orientation, shape), block_amax.len())?;
    let slice = Slice { format, orientation, via, shape, span: shard.span() };
    Ok(kernels::amax(slice, master, block_amax))
}

/// The codes of a shard of a weight of `shape`, with the factors [`crate::fused_scale`] gave for the
/// full shape. `fragment` has the bytes [`FlatShard::fragment`]; nibbles of a neighbour keep their value
/// (FS-1).
///
/// # Errors
/// As [`crate::partial_cast`]; a shard out of range.
#[expect(clippy::too_many_arguments, reason = "one more than `partial_cast`: the shard")]
pub fn flat_cast(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    shard: FlatShard,
    master: &[f32],
    encode: &[f32],
    fragment: &mut [u8],
) -> Result<(), FormatError> {
    check_stage(format, orientation, shape)?;
    shard.check(shape)?;
    check_length("master", shard.len, master.len())?;
    check_length("encode", format.encode_blocks(orientation, shape), encode.len())?;
    check_length("the fragment", shard.fragment(format).len(), fragment.len())?;
    let slice = Slice { format, orientation, via, shape, span: shard.span() };
    kernels::cast(slice, master, encode, fragment);
    Ok(())
}
