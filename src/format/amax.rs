//! Largest magnitudes: of the blocks of a span, and of the span.
//!
//! Laws: NaN never raises an amax (a comparison with it is false); infinity does; a block the span does not
//! touch gets 0. Blocks are numbered row-major over the whole matrix.

use super::shape::Shape;
use super::span::{Span, split_at_tile};
use super::via::through;

/// Amax of every block of `HEIGHT` × `WIDTH` elements (`height` rows).
pub(super) fn of_tiles<const WIDTH: usize, const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    blocks: &mut [f32],
) {
    blocks.fill(0.0);
    let grid_cols = shape.cols.div_ceil(WIDTH);
    for segment in span.segments(shape.cols) {
        let grid_row = &mut blocks[segment.row / height * grid_cols..][..grid_cols];
        let values = &master[segment.offset..][..segment.len];
        let (head, _) = split_at_tile::<WIDTH>(segment.column, segment.len);
        let (head, rest) = values.split_at(head);
        if !head.is_empty() {
            raise(&mut grid_row[segment.column / WIDTH], of_values::<BF16>(head));
        }
        let first = segment.column.div_ceil(WIDTH);
        let (tiles, tail) = rest.as_chunks::<WIDTH>();
        for (block, tile) in grid_row[first..].iter_mut().zip(tiles) {
            raise(block, of_values::<BF16>(tile));
        }
        if !tail.is_empty() {
            raise(&mut grid_row[first + tiles.len()], of_values::<BF16>(tail));
        }
    }
}

/// Amax of every block of `height` × 1 elements.
pub(super) fn of_columns<const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    blocks: &mut [f32],
) {
    blocks.fill(0.0);
    for segment in span.segments(shape.cols) {
        let grid_row = &mut blocks[segment.row / height * shape.cols + segment.column..][..segment.len];
        for (block, &value) in grid_row.iter_mut().zip(&master[segment.offset..][..segment.len]) {
            raise(block, through::<BF16>(value).abs());
        }
    }
}

/// Amax of a slice.
#[inline(always)]
pub(super) fn of_values<const BF16: bool>(values: &[f32]) -> f32 {
    // Independent lanes: a maximum over floats must not be reordered by the compiler, so we order it.
    const LANES: usize = 8;
    let mut lanes = [0.0f32; LANES];
    let (chunks, tail) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            raise(lane, through::<BF16>(value).abs());
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(tail) {
        raise(lane, through::<BF16>(value).abs());
    }
    of_amaxes(&lanes)
}

/// The largest of several amaxes; 0 if there are none.
pub(super) fn of_amaxes(amaxes: &[f32]) -> f32 {
    let mut largest = 0.0;
    for &amax in amaxes {
        raise(&mut largest, amax);
    }
    largest
}

#[inline(always)]
fn raise(amax: &mut f32, magnitude: f32) {
    *amax = if magnitude > *amax { magnitude } else { *amax };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_never_raises_an_amax_and_infinity_does() {
        assert_eq!(of_values::<false>(&[f32::NAN, -2.0, f32::NAN]), 2.0);
        assert_eq!(of_values::<true>(&[f32::NAN; 20]), 0.0);
        assert_eq!(of_values::<false>(&[1.0, f32::NEG_INFINITY]), f32::INFINITY);
    }

    #[test]
    fn a_block_the_span_does_not_touch_gets_zero() {
        let shape = Shape::new(4, 8);
        let mut blocks = [9.0; 4];
        of_tiles::<4, false>(2, shape, Span { start: 9, len: 3 }, &[1.0, -3.0, 2.0], &mut blocks);
        assert_eq!(blocks, [3.0, 0.0, 0.0, 0.0]);
        let mut blocks = [9.0; 16];
        of_columns::<false>(2, shape, Span { start: 15, len: 2 }, &[1.0, -3.0], &mut blocks);
        assert_eq!(blocks[7..9], [1.0, 3.0]);
        assert_eq!(blocks.iter().sum::<f32>(), 4.0);
    }
}
