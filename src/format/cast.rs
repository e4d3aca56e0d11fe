//! Codes of a span: multiply by the encode factor of the block, convert, store.
//!
//! Laws:
//! - **CA-1** exactly the codes of the span change. A nibble of a shared first or last byte that belongs to a
//!   neighbour keeps its value.
//! - One f32 multiplication per element, then one rounding to the element type.
//!
//! The destination begins with the byte that holds the first element of the span.

use super::minifloat::{E2m1, Minifloat, encode, encode_wide};
use super::shape::Shape;
use super::span::{Span, split_at_tile};
use super::via::through;

/// One byte per element, one factor per block of `height` × `WIDTH`.
pub(super) fn tiles_to_bytes<F: Minifloat, const WIDTH: usize, const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    let grid_cols = shape.cols.div_ceil(WIDTH);
    for segment in span.segments(shape.cols) {
        let factors = &factors[segment.row / height * grid_cols..][..grid_cols];
        let values = &master[segment.offset..][..segment.len];
        let codes = &mut data[segment.offset..][..segment.len];
        let (head, _) = split_at_tile::<WIDTH>(segment.column, segment.len);
        let (head, rest) = values.split_at(head);
        let (head_codes, rest_codes) = codes.split_at_mut(head.len());
        if !head.is_empty() {
            slice_to_bytes::<F, BF16>(head, factors[segment.column / WIDTH], head_codes);
        }
        let first = segment.column.div_ceil(WIDTH);
        for ((values, codes), &factor) in
            rest.chunks(WIDTH).zip(rest_codes.chunks_mut(WIDTH)).zip(&factors[first..])
        {
            slice_to_bytes::<F, BF16>(values, factor, codes);
        }
    }
}

/// One byte per element, one factor per block of `height` × 1.
pub(super) fn columns_to_bytes<F: Minifloat, const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    for segment in span.segments(shape.cols) {
        let factors = &factors[segment.row / height * shape.cols + segment.column..][..segment.len];
        let values = &master[segment.offset..][..segment.len];
        let codes = &mut data[segment.offset..][..segment.len];
        for ((code, &value), &factor) in codes.iter_mut().zip(values).zip(factors) {
            *code = encode::<F>(through::<BF16>(value) * factor);
        }
    }
}

/// One byte per element, one factor for all.
#[inline(always)]
pub(super) fn slice_to_bytes<F: Minifloat, const BF16: bool>(values: &[f32], factor: f32, codes: &mut [u8]) {
    for (code, &value) in codes.iter_mut().zip(values) {
        *code = encode::<F>(through::<BF16>(value) * factor);
    }
}

/// Two E2M1 codes per byte, the even element in the low nibble; one factor per block of `height` × 16.
/// `shape.cols` is a multiple of 16, so the parity of a column is the parity of the flat index.
pub(super) fn tiles_to_nibbles<const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    const WIDTH: usize = 16;
    let grid_cols = shape.cols.div_ceil(WIDTH);
    let first_byte = span.start / 2;
    for segment in span.segments(shape.cols) {
        let factors = &factors[segment.row / height * grid_cols..][..grid_cols];
        let values = &master[segment.offset..][..segment.len];
        let (head, _) = split_at_tile::<WIDTH>(segment.column, segment.len);
        let (head, rest) = values.split_at(head);
        let mut index = span.start + segment.offset;
        if !head.is_empty() {
            slice_to_nibbles::<BF16>(
                head,
                factors[segment.column / WIDTH],
                index,
                &mut data[index / 2 - first_byte..],
            );
            index += head.len();
        }
        let first = segment.column.div_ceil(WIDTH);
        let (tiles, tail) = rest.as_chunks::<WIDTH>();
        let (bytes, _) = data[index / 2 - first_byte..].as_chunks_mut::<{ WIDTH / 2 }>();
        for ((tile, bytes), &factor) in tiles.iter().zip(bytes).zip(&factors[first..]) {
            tile_to_nibbles::<BF16>(tile, factor, bytes);
        }
        index += tiles.len() * WIDTH;
        if !tail.is_empty() {
            let factor = factors[first + tiles.len()];
            slice_to_nibbles::<BF16>(tail, factor, index, &mut data[index / 2 - first_byte..]);
        }
    }
}

/// Sixteen elements to eight bytes.
#[inline(always)]
fn tile_to_nibbles<const BF16: bool>(tile: &[f32; 16], factor: f32, bytes: &mut [u8; 8]) {
    let codes = tile.map(|value| encode_wide::<E2m1>(through::<BF16>(value) * factor));
    for (byte, pair) in bytes.iter_mut().zip(codes.as_chunks::<2>().0) {
        *byte = (pair[0] | pair[1] << 4) as u8;
    }
}

/// Any number of elements from flat `index` on; `bytes[0]` holds the first. Leaves foreign nibbles alone.
fn slice_to_nibbles<const BF16: bool>(values: &[f32], factor: f32, index: usize, bytes: &mut [u8]) {
    let base = index / 2;
    for (offset, &value) in values.iter().enumerate() {
        let at = index + offset;
        let code = encode::<E2m1>(through::<BF16>(value) * factor);
        let byte = &mut bytes[at / 2 - base];
        *byte = if at.is_multiple_of(2) { (*byte & 0xF0) | code } else { (*byte & 0x0F) | code << 4 };
    }
}
