//! MXFP8: E4M3 codes, one E8M0 scale per 32 elements.
//!
//! ```text
//! c    = E8M0(block_amax · (1/448))       rounded up, so codes do not saturate
//! code = E4M3(x · 2^(127−c))
//! y    = code · 2^(c−127)
//! ```
//!
//! Rowwise planes have blocks of 1×32, columnwise planes blocks of 32×1; both keep the data as `[M, K]`.
//! Neither follows from the other, so a shard stores both and quantizes both from the master.

use super::Format;
use super::e8m0;
use super::format::Fp8Element;
use super::shape::{Orientation, Planes, Shape};
use super::transpose;
use super::via::Value;

/// Elements of a block.
pub(super) const BLOCK: usize = 32;

/// Scale bytes and encode factors.
pub(super) fn fused_scale(
    orientation: Orientation,
    shape: Shape,
    block_amax: &[f32],
    factors: &mut [f32],
    scale: &mut [u8],
) {
    scale.fill(0);
    let grid_cols = grid_cols(orientation, shape);
    let pitch = Format::Mxfp8.scale_row_bytes(orientation, shape);
    if grid_cols == 0 {
        return;
    }
    let grid = block_amax.chunks_exact(grid_cols).zip(factors.chunks_exact_mut(grid_cols));
    for (bytes, (amaxes, factors)) in scale.chunks_exact_mut(pitch).zip(grid) {
        for ((byte, factor), &amax) in bytes.iter_mut().zip(factors).zip(amaxes) {
            *byte = e8m0::encode(amax * (1.0 / 448.0));
            *factor = e8m0::reciprocal(*byte);
        }
    }
}

/// Values of the planes of one orientation: `[M, K]` rowwise, transposed to `[K, M]` columnwise.
pub(super) fn dequantize<V: Value>(
    orientation: Orientation,
    shape: Shape,
    planes: Planes<'_>,
    out: &mut [V],
) {
    if shape.elements() == 0 {
        return;
    }
    let values = Fp8Element::E4m3.values();
    let pitch = Format::Mxfp8.scale_row_bytes(orientation, shape);
    match orientation {
        Orientation::Rowwise => {
            let rows = planes.data.chunks_exact(shape.cols).zip(planes.scale.chunks_exact(pitch));
            for ((codes, scales), out) in rows.zip(out.chunks_exact_mut(shape.cols)) {
                let blocks = codes.chunks_exact(BLOCK).zip(scales);
                for ((codes, &scale), out) in blocks.zip(out.chunks_exact_mut(BLOCK)) {
                    super::fp8::dequantize_slice(values, codes, e8m0::decode(scale), out);
                }
            }
        }
        Orientation::Columnwise => {
            let mut tile = Tile { codes: [0; TILE_BYTES], turned: [0; TILE_BYTES] };
            for top in (0..shape.rows).step_by(TILE_ROWS) {
                for left in (0..shape.cols).step_by(TILE_COLS) {
                    let size = Shape::new(TILE_ROWS.min(shape.rows - top), TILE_COLS.min(shape.cols - left));
                    let codes = tile.turn(size, planes.data[top * shape.cols + left..].chunks(shape.cols));
                    for (column, codes) in (left..).zip(codes.chunks_exact(size.rows)) {
                        let out = &mut out[column * shape.rows + top..][..size.rows];
                        let blocks = codes.chunks(BLOCK).zip(out.chunks_mut(BLOCK));
                        for (block, (codes, out)) in (top / BLOCK..).zip(blocks) {
                            let factor = e8m0::decode(planes.scale[block * pitch + column]);
                            super::fp8::dequantize_slice(values, codes, factor, out);
                        }
                    }
                }
            }
        }
    }
}

/// The rows of a piece of a plane that is transposed in the cache, so that it is read along its rows and
/// written along its columns: four blocks of one cache line's width.
const TILE_ROWS: usize = 4 * BLOCK;
const TILE_COLS: usize = 64;
const TILE_BYTES: usize = TILE_ROWS * TILE_COLS;

struct Tile {
    codes: [u8; TILE_BYTES],
    turned: [u8; TILE_BYTES],
}

impl Tile {
    /// The transpose of `size` codes, which begin the `rows`.
    fn turn<'a>(&mut self, size: Shape, rows: impl Iterator<Item = &'a [u8]>) -> &[u8] {
        for (copy, row) in self.codes.chunks_exact_mut(size.cols).take(size.rows).zip(rows) {
            copy.copy_from_slice(&row[..size.cols]);
        }
        let bytes = size.elements();
        transpose::bytes::<1>(size, &self.codes[..bytes], &mut self.turned[..bytes]);
        &self.turned[..bytes]
    }
}

/// Blocks per row of the block grid.
fn grid_cols(orientation: Orientation, shape: Shape) -> usize {
    match orientation {
        Orientation::Rowwise => shape.cols / BLOCK,
        Orientation::Columnwise => shape.cols,
    }
}
