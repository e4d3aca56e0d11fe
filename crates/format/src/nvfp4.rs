//! NVFP4: E2M1 codes, one E4M3 scale per block, one f32 amax per tensor.
//!
//! A is the amax of the tensor. Source: the TransformerEngine kernels. The order of operations is part of the
//! format, and each one is rounded on its own:
//!
//! ```text
//! S_enc = A == 0 ? 1 : min(2688 / A, FMAX)      2688 = 6 · 448, the largest code times the largest scale
//! d     = min(block_amax · (S_enc · (1/6)), FMAX)
//! s     = E4M3(d)                                the stored byte
//! e     = min(1 / (s · (1/S_enc)), FMAX)         the factor of the cast; s = 0 gives FMAX
//! code  = E2M1(x · e)
//! y     = code · ((s · A) · (1/2688))
//! ```
//!
//! In 16×16 tiles the scale byte is repeated in the 16 rows of its tile, so rowwise planes look the same for
//! both block shapes, and the columnwise planes are the transpose. An amax that is not finite has no scale:
//! it is an error, never a byte.

use super::format::{Format, Nvfp4Block};
use super::minifloat::{E2m1, E4m3, decode, decode_table, encode};
use super::shape::{Orientation, Shape};
use super::via::Value;
use super::{FormatError, Planes, transpose};

const LARGEST_PRODUCT: f32 = 6.0 * 448.0;
/// Rows of a 16×16 tile.
const TILE: usize = 16;
const E2M1_VALUES: [f32; 256] = decode_table::<E2m1>();
const E4M3_VALUES: [f32; 256] = decode_table::<E4m3>();

/// The scales of a tensor with a given amax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nvfp4Scale {
    /// S_enc: what the tensor is multiplied by before the block scales.
    pub encode: f32,
    /// 1 / S_enc.
    pub decode: f32,
}

impl Nvfp4Scale {
    /// The scales for values up to `amax`, which must be finite.
    #[must_use]
    pub fn new(amax: f32) -> Self {
        let encode = if amax == 0.0 { 1.0 } else { (LARGEST_PRODUCT / amax).min(f32::MAX) };
        Self { encode, decode: 1.0 / encode }
    }

    /// d: the decode scale of a block before it is rounded to E4M3.
    #[must_use]
    pub fn block_decode(self, block_amax: f32) -> f32 {
        (block_amax * (self.encode * (1.0 / 6.0))).min(f32::MAX)
    }

    /// The scale byte of a block and the factor its elements are multiplied by.
    fn block_scale(self, block_amax: f32) -> (u8, f32) {
        let scale = encode::<E4m3>(self.block_decode(block_amax));
        let factor = (1.0 / (decode::<E4m3>(scale) * self.decode)).min(f32::MAX);
        (scale, factor)
    }
}

/// Scale bytes and encode factors. Returns A, which dequantize needs besides the planes.
pub(super) fn fused_scale(
    block: Nvfp4Block,
    shape: Shape,
    block_amax: &[f32],
    amax: f32,
    factors: &mut [f32],
    scale: &mut [u8],
) -> Result<f32, FormatError> {
    Format::Nvfp4(block).check_tensor_amax(amax)?;
    let tensor = Nvfp4Scale::new(amax);
    let grid_cols = shape.cols / 16;
    let pitch = scale_pitch(shape);
    let grid_rows = shape.rows.div_ceil(block_height(block));
    // In the compact plane every row belongs to another tile.
    let height = if scale.len() == grid_rows * pitch { 1 } else { block_height(block) };
    let valid = grid_rows * height * pitch;
    scale[valid..].fill(0);
    let strips = scale[..valid].chunks_exact_mut((height * pitch).max(1));
    let grid = block_amax.chunks_exact(grid_cols.max(1)).zip(factors.chunks_exact_mut(grid_cols.max(1)));
    for (strip, (amaxes, factors)) in strips.zip(grid) {
        let (row, copies) = strip.split_at_mut(pitch);
        for ((byte, factor), &amax) in row.iter_mut().zip(factors).zip(amaxes) {
            (*byte, *factor) = tensor.block_scale(amax);
        }
        row[grid_cols..].fill(0);
        for copy in copies.chunks_exact_mut(pitch.max(1)) {
            copy.copy_from_slice(row);
        }
    }
    Ok(amax)
}

/// Values of the first `cols` columns of rowwise planes, with a scale row for each of their rows or one for each row
/// of tiles. `out` may end before the planes do.
pub(super) fn dequantize<V: Value>(shape: Shape, planes: Planes<'_>, amax: f32, cols: usize, out: &mut [V]) {
    let pitch = scale_pitch(shape);
    if cols == 0 {
        return;
    }
    let height = if planes.scale.len() < shape.rows * pitch { TILE } else { 1 };
    let scales = planes.scale.chunks_exact(pitch).flat_map(|scales| std::iter::repeat_n(scales, height));
    let rows = planes.data.chunks_exact(shape.cols / 2).zip(scales);
    for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(cols)) {
        let blocks = codes.as_chunks::<8>().0.iter().zip(scales);
        let (whole, rest) = out.as_chunks_mut::<16>();
        for ((codes, &scale), out) in blocks.clone().zip(whole.iter_mut()) {
            let factor = factor(scale, amax);
            for (&code, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
                out[0] = V::of(E2M1_VALUES[usize::from(code & 15)] * factor);
                out[1] = V::of(E2M1_VALUES[usize::from(code >> 4)] * factor);
            }
        }
        for (codes, &scale) in blocks.skip(whole.len()) {
            let factor = factor(scale, amax);
            for (at, out) in rest.iter_mut().enumerate() {
                *out = V::of(E2M1_VALUES[usize::from(codes[at / 2] >> (at % 2 * 4) & 15)] * factor);
            }
        }
    }
}

/// What the codes of a block are multiplied by.
#[inline(always)]
fn factor(scale: u8, amax: f32) -> f32 {
    (E4M3_VALUES[usize::from(scale)] * amax) * (1.0 / LARGEST_PRODUCT)
}

/// Columnwise planes of 16×16 tiles from rowwise ones: nibbles and tile scales transposed, padding zero.
/// `shape` is that of the weight.
pub(super) fn derive_columnwise(shape: Shape, rowwise: Planes<'_>, data: &mut [u8], scale: &mut [u8]) {
    transpose::nibbles(shape, rowwise.data, data);
    let source_pitch = scale_pitch(shape);
    let pitch = scale_pitch(shape.transposed());
    if pitch == 0 {
        return;
    }
    scale.fill(0);
    for (column, row) in scale.chunks_exact_mut(pitch).take(shape.cols).enumerate() {
        for (tile, byte) in row.iter_mut().take(shape.rows / 16).enumerate() {
            *byte = rowwise.scale[tile * 16 * source_pitch + column / 16];
        }
    }
}

/// Rows of a block.
pub(super) const fn block_height(block: Nvfp4Block) -> usize {
    match block {
        Nvfp4Block::Tile16x16 => TILE,
        Nvfp4Block::Row1x16 => 1,
    }
}

/// Bytes of one row of the scale plane.
fn scale_pitch(shape: Shape) -> usize {
    Format::NVFP4_2D.scale_row_bytes(Orientation::Rowwise, shape)
}
