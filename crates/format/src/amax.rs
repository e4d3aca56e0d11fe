//! Largest magnitudes: of the blocks of a span, and of the span.
//!
//! Laws:
//! - **AM-1** NaN never raises an amax (a comparison with it is false); infinity does.
//! - **AM-2** a block the span does not touch gets 0. Blocks are numbered row-major over the whole matrix.
//! - **AM-3** rounding to bfloat16 is monotone, so the amax of rounded values is the rounded amax: one
//!   rounding per block instead of one per element.

use super::shape::Shape;
use super::span::Span;

/// Columns worked on at a time: a multiple of every block width, small enough for the first-level cache.
const CHUNK: usize = 512;

/// Amax of every block of `height` × `WIDTH` elements.
#[inline(always)]
pub(super) fn of_tiles<const WIDTH: usize>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    blocks: &mut [f32],
) {
    blocks.fill(0.0);
    let rows = span.rows(shape.cols);
    let grid_cols = shape.cols.div_ceil(WIDTH);
    for grid_row in rows.start / height..rows.end.div_ceil(height) {
        let blocks = &mut blocks[grid_row * grid_cols..][..grid_cols];
        let rows = rows.start.max(grid_row * height)..rows.end.min((grid_row + 1) * height);
        for (left, blocks) in (0..shape.cols).step_by(CHUNK).zip(blocks.chunks_mut(CHUNK / WIDTH)) {
            // First the amax of every column, where nothing crosses lanes, then of every block.
            let mut columns = [0.0; CHUNK];
            for row in rows.clone() {
                let part = span.columns(row, shape.cols, left..left + CHUNK);
                if part.is_empty() {
                    continue;
                }
                let values = &master[row * shape.cols + part.start - span.start..][..part.len()];
                raise_each(&mut columns[part.start - left..][..part.len()], values);
            }
            for (block, columns) in blocks.iter_mut().zip(columns.as_chunks::<WIDTH>().0) {
                *block = of_amaxes(columns);
            }
        }
    }
}

/// Amax of a slice.
#[inline(always)]
pub(super) fn of_values(values: &[f32]) -> f32 {
    let mut lanes = [0.0; 64];
    for values in values.chunks(64) {
        raise_each(&mut lanes, values);
    }
    of_amaxes(&lanes)
}

/// The largest of several amaxes; 0 if there are none.
#[inline(always)]
pub(super) fn of_amaxes(amaxes: &[f32]) -> f32 {
    let (chunks, rest) = amaxes.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        raise_each(&mut lanes, chunk);
    }
    raise_each(&mut lanes, rest);
    let mut largest = 0.0;
    for lane in lanes {
        largest = if lane > largest { lane } else { largest };
    }
    largest
}

/// Raises every amax to the magnitude of its value.
#[inline(always)]
fn raise_each(amaxes: &mut [f32], values: &[f32]) {
    for (amax, value) in amaxes.iter_mut().zip(values) {
        let magnitude = value.abs();
        *amax = if magnitude > *amax { magnitude } else { *amax };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AM-1.
    #[test]
    fn nan_never_raises_an_amax_and_infinity_does() {
        assert_eq!(of_values(&[f32::NAN, -2.0, f32::NAN]), 2.0);
        assert_eq!(of_values(&[f32::NAN; 20]), 0.0);
        assert_eq!(of_values(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
    }

    /// AM-2.
    #[test]
    fn a_block_the_span_does_not_touch_gets_zero() {
        let shape = Shape::new(4, 8);
        let mut blocks = [9.0; 4];
        of_tiles::<4>(2, shape, Span { start: 9, len: 3 }, &[1.0, -3.0, 2.0], &mut blocks);
        assert_eq!(blocks, [3.0, 0.0, 0.0, 0.0]);
        let mut blocks = [9.0; 16];
        of_tiles::<1>(2, shape, Span { start: 15, len: 2 }, &[1.0, -3.0], &mut blocks);
        assert_eq!(blocks[7..9], [1.0, 3.0]);
        assert_eq!(blocks.iter().sum::<f32>(), 4.0);
    }
}
