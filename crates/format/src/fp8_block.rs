//! FP8 with one f32 scale per block of 128×128 (weights) or 1×128 (activations).
//!
//! The stored scale is `scale_inv`, the factor of dequantize. Any shape is allowed: blocks at the edge hold
//! only the elements in range. The scale plane of 1×128 blocks is transposed, block column by row, as the
//! GEMM wants it. Its inner dimension is the rows, so its row shards cannot be gathered.

use super::format::{Format, Fp8Block, Fp8Tile};
use super::fp8::{Fp8Scale, dequantize_slice};
use super::shape::{Orientation, Planes, Shape};
use super::via::Value;

/// Rows of a block.
pub(super) const fn block_height(block: Fp8Block) -> usize {
    match block.tile {
        Fp8Tile::Tile128x128 => 128,
        Fp8Tile::Row1x128 => 1,
    }
}

/// Scale bytes and encode factors of rowwise planes.
pub(super) fn fused_scale(
    block: Fp8Block,
    shape: Shape,
    block_amax: &[f32],
    factors: &mut [f32],
    scale: &mut [u8],
) {
    scale.fill(0);
    let index = ScaleIndex::new(block, shape);
    let (scales, _) = scale.as_chunks_mut::<4>();
    let grid_cols = shape.cols.div_ceil(128);
    for (at, (&amax, factor)) in block_amax.iter().zip(factors).enumerate() {
        let scale = Fp8Scale::new(block.element, block.scale, block.epsilon, amax);
        *factor = scale.encode;
        scales[index.of(at / grid_cols, at % grid_cols)] = scale.decode.to_le_bytes();
    }
}

/// Values of rowwise planes.
pub(super) fn dequantize<V: Value>(block: Fp8Block, shape: Shape, planes: Planes<'_>, out: &mut [V]) {
    if shape.cols == 0 {
        return;
    }
    let height = block_height(block);
    let values = block.element.values();
    let index = ScaleIndex::new(block, shape);
    let (scales, _) = planes.scale.as_chunks::<4>();
    let rows = planes.data.chunks_exact(shape.cols).zip(out.chunks_exact_mut(shape.cols));
    for (row, (codes, out)) in rows.enumerate() {
        for (column, (codes, out)) in codes.chunks(128).zip(out.chunks_mut(128)).enumerate() {
            let factor = f32::from_le_bytes(scales[index.of(row / height, column)]);
            dequantize_slice(values, codes, factor, out);
        }
    }
}

/// Columnwise scales of 128×128 tiles from rowwise ones: transposed by the logical extents, padding zero.
/// `shape` is that of the weight.
pub(super) fn transpose_scale(block: Fp8Block, shape: Shape, rowwise: &[u8], columnwise: &mut [u8]) {
    columnwise.fill(0);
    let source = ScaleIndex::new(block, shape);
    let target = ScaleIndex::new(block, shape.transposed());
    let (rowwise, _) = rowwise.as_chunks::<4>();
    let (columnwise, _) = columnwise.as_chunks_mut::<4>();
    for row in 0..shape.rows.div_ceil(128) {
        for column in 0..shape.cols.div_ceil(128) {
            columnwise[target.of(column, row)] = rowwise[source.of(row, column)];
        }
    }
}

/// Where the scale of a block is in the scale plane.
#[derive(Clone, Copy)]
struct ScaleIndex {
    tile: Fp8Tile,
    /// Scales per row of the plane, padding included.
    pitch: usize,
}

impl ScaleIndex {
    fn new(block: Fp8Block, shape: Shape) -> Self {
        let row_bytes = Format::Fp8Block(block).scale_row_bytes(Orientation::Rowwise, shape);
        Self { tile: block.tile, pitch: row_bytes / size_of::<f32>() }
    }

    /// `row` and `column` count blocks.
    #[inline(always)]
    fn of(self, row: usize, column: usize) -> usize {
        match self.tile {
            Fp8Tile::Tile128x128 => row * self.pitch + column,
            Fp8Tile::Row1x128 => column * self.pitch + row,
        }
    }
}
