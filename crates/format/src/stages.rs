//! The stages of quantizing a row shard, one function each: amax, scale, cast, transpose, dequantize.
//!
//! Laws:
//! - **ST-1** every argument is validated before the first byte is written; an error changes nothing.
//! - **ST-2** no stage allocates.
//! - **ST-3** the shards of a weight, cast with the amax reduced over all of them, laid end to end, are
//!   bit-identical to the weight quantized whole.
//!
//! `shape` is the shape of the shard, or of the whole weight if there is only one shard. The rows of a shard
//! are a multiple of [`Format::row_tile`], except those of the last one, and zero rows are fine.
//! [`super::quantize`] is the composition.

use half::bf16;

use super::format::Format;
use super::fp8::Fp8Scale;
use super::kernels::{self, Slice};
use super::partial::FlatShard;
use super::shape::{Orientation, Planes, PlanesMut, Shape};
use super::span::Span;
use super::via::{Value, Via};
use super::{FormatError, dense, fp8_block, mxfp8, nvfp4, transpose as transposed};

/// Amax of every block of `master`, and of all of it (the return value; 0 for f32 and bf16).
///
/// `master` is `[rows, cols]`; `block_amax` has [`Format::amax_blocks`] entries, row-major over the blocks.
/// NaN never raises an amax, infinity does.
///
/// # Errors
/// Columns that do not divide into blocks, a slice of the wrong length, an orientation the format does not
/// store.
pub fn partial_amax(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
    block_amax: &mut [f32],
) -> Result<f32, FormatError> {
    check_stage(format, orientation, shape)?;
    check_length("master", shape.elements(), master.len())?;
    check_length("block_amax", format.amax_blocks(orientation, shape), block_amax.len())?;
    let slice = Slice { format, orientation, via, shape, span: Span::whole(master.len()) };
    Ok(kernels::amax(slice, master, block_amax))
}

/// Scale bytes of the blocks, and the factors the cast multiplies by.
///
/// `tensor_amax` is the amax of the whole tensor, after the maximum over the ranks; formats for which
/// [`Format::needs_tensor_amax`] is false ignore it. `encode` has [`Format::encode_blocks`] entries.
/// `scale_plane` has the bytes of the padded plane, of the shard's, or of the compact one, which
/// [`Format::planes`], [`Format::shard_planes`] and [`Format::compact_planes`] give; padding is set to zero.
///
/// Returns the tensor scale, which [`dequantize`] needs besides the planes: for NVFP4 the amax, for
/// per-tensor FP8 `scale_inv`, for other formats 1.
///
/// # Errors
/// As [`partial_amax`]; [`FormatError::NonFiniteAmax`] for NVFP4 when `tensor_amax` is not finite.
pub fn fused_scale(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    block_amax: &[f32],
    tensor_amax: f32,
    encode: &mut [f32],
    scale_plane: &mut [u8],
) -> Result<f32, FormatError> {
    check_stage(format, orientation, shape)?;
    check_length("block_amax", format.amax_blocks(orientation, shape), block_amax.len())?;
    check_length("encode", format.encode_blocks(orientation, shape), encode.len())?;
    if scale_plane.len() != format.scale_bytes(orientation, shape).compact {
        check_scale_plane(format, orientation, shape, scale_plane.len())?;
    }
    match format {
        Format::F32 | Format::Bf16 => Ok(1.0),
        Format::Nvfp4(block) => {
            nvfp4::fused_scale(block, shape, block_amax, tensor_amax, encode, scale_plane)
        }
        Format::Fp8Block(block) => {
            fp8_block::fused_scale(block, shape, block_amax, encode, scale_plane);
            Ok(1.0)
        }
        Format::Mxfp8 => {
            mxfp8::fused_scale(orientation, shape, block_amax, encode, scale_plane);
            Ok(1.0)
        }
        Format::Fp8Tensor(tensor) => {
            let scale = Fp8Scale::new(tensor.element, tensor.scale, tensor.epsilon, tensor_amax);
            encode[0] = scale.encode;
            Ok(scale.decode)
        }
    }
}

/// The codes of `master` (`[rows, cols]`), with the factors of [`fused_scale`].
///
/// `data` has the bytes of the shard's data plane; rows that complete the last blocks are set to zero.
///
/// # Errors
/// As [`partial_amax`].
pub fn partial_cast(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
    encode: &[f32],
    data: &mut [u8],
) -> Result<(), FormatError> {
    check_stage(format, orientation, shape)?;
    check_length("master", shape.elements(), master.len())?;
    check_length("encode", format.encode_blocks(orientation, shape), encode.len())?;
    check_length("the data plane", format.data_plane(orientation, shape).bytes(), data.len())?;
    let (own, rest) = data.split_at_mut(FlatShard { start: 0, len: master.len() }.fragment(format).end);
    let slice = Slice { format, orientation, via, shape, span: Span::whole(master.len()) };
    kernels::cast(slice, master, encode, own);
    rest.fill(0);
    Ok(())
}

/// The columnwise planes of a full weight of `shape`, from its rowwise planes. Padding is set to zero.
///
/// Bit-identical to quantizing the transposed weight: blocks are square, and codes and scale bytes are moved,
/// never rounded again. For f32 and bf16 this is the transposed copy.
///
/// # Errors
/// [`FormatError::CannotDeriveColumnwise`]; columns that do not divide into blocks; a plane of the wrong
/// length.
pub fn transpose(
    format: Format,
    shape: Shape,
    rowwise: Planes<'_>,
    columnwise: PlanesMut<'_>,
) -> Result<(), FormatError> {
    format.derives_columnwise()?;
    format.check_blocks(shape)?;
    check_planes(format, Orientation::Rowwise, shape, rowwise)?;
    let target = Planes { data: &*columnwise.data, scale: &*columnwise.scale };
    check_planes(format, Orientation::Columnwise, shape, target)?;
    let shape = format.whole_blocks(shape);
    match format {
        Format::F32 => transposed::bytes::<4>(shape, rowwise.data, columnwise.data),
        Format::Bf16 => transposed::bytes::<2>(shape, rowwise.data, columnwise.data),
        Format::Nvfp4(_) => nvfp4::derive_columnwise(shape, rowwise, columnwise.data, columnwise.scale),
        Format::Fp8Block(block) => {
            transposed::bytes::<1>(shape, rowwise.data, columnwise.data);
            fp8_block::transpose_scale(block, shape, rowwise.scale, columnwise.scale);
        }
        Format::Mxfp8 | Format::Fp8Tensor(_) => transposed::bytes::<1>(shape, rowwise.data, columnwise.data),
    }
    Ok(())
}

/// The values of planes: `[rows, cols]` from rowwise planes, the transpose `[cols, rows]` from columnwise
/// ones.
/// `shape` is that of the weight (or shard) in both cases. The scale plane may or may not have its padding
/// rows; that of rowwise planes may also be the compact one of [`Format::compact_planes`]. `tensor_scale` is
/// what [`fused_scale`] returned.
///
/// # Errors
/// Columns that do not divide into blocks, a slice of the wrong length.
pub fn dequantize(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    planes: Planes<'_>,
    tensor_scale: f32,
    out: &mut [f32],
) -> Result<(), FormatError> {
    values(format, orientation, shape, planes, tensor_scale, out)
}

/// [`dequantize`], rounded to bfloat16, nearest even.
///
/// # Errors
/// As [`dequantize`].
pub fn dequantize_bf16(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    planes: Planes<'_>,
    tensor_scale: f32,
    out: &mut [bf16],
) -> Result<(), FormatError> {
    values(format, orientation, shape, planes, tensor_scale, out)
}

fn values<V: Value>(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    planes: Planes<'_>,
    tensor_scale: f32,
    out: &mut [V],
) -> Result<(), FormatError> {
    format.check_blocks(shape)?;
    check_length("the data plane", format.data_plane(orientation, shape).bytes(), planes.data.len())?;
    let compact = format.scale_bytes(orientation, shape).compact;
    if orientation != Orientation::Rowwise || planes.scale.len() != compact {
        check_scale_plane(format, orientation, shape, planes.scale.len())?;
    }
    check_length("out", shape.elements(), out.len())?;
    let stored = format.stored_shape(orientation, shape);
    match format {
        Format::F32 => dense::dequantize_f32(planes.data, out),
        Format::Bf16 => dense::dequantize_bf16(planes.data, out),
        Format::Nvfp4(_) => {
            let whole = format.stored_shape(orientation, format.whole_blocks(shape));
            nvfp4::dequantize(whole, planes, tensor_scale, stored.cols, out);
        }
        Format::Fp8Block(block) => fp8_block::dequantize(block, stored, planes, out),
        Format::Mxfp8 => mxfp8::dequantize(orientation, shape, planes, out),
        Format::Fp8Tensor(tensor) => {
            super::fp8::dequantize_slice(tensor.element.values(), planes.data, tensor_scale, out);
        }
    }
    Ok(())
}

pub(super) fn check_stage(format: Format, orientation: Orientation, shape: Shape) -> Result<(), FormatError> {
    if !format.stored_orientations().contains(&orientation) {
        let hint = match format.derives_columnwise() {
            Ok(()) => "derive them with `transpose` after the gather",
            Err(_) => "quantize the transposed weight rowwise",
        };
        return Err(FormatError::OrientationNotStored { format, orientation, hint });
    }
    format.check_blocks(shape)
}

fn check_planes(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    planes: Planes<'_>,
) -> Result<(), FormatError> {
    check_length("the data plane", format.data_plane(orientation, shape).bytes(), planes.data.len())?;
    check_scale_plane(format, orientation, shape, planes.scale.len())
}

pub(super) fn check_scale_plane(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    actual: usize,
) -> Result<(), FormatError> {
    let bytes = format.scale_bytes(orientation, shape);
    if actual == bytes.shard || actual == bytes.padded {
        return Ok(());
    }
    Err(FormatError::ScaleLength { orientation, shard: bytes.shard, padded: bytes.padded, actual })
}

pub(super) fn check_length(what: &'static str, expected: usize, actual: usize) -> Result<(), FormatError> {
    if expected == actual { Ok(()) } else { Err(FormatError::Length { what, expected, actual }) }
}
