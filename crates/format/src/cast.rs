//! Codes of a span: multiply by the encode factor of the block, convert, store.
//!
//! Laws:
//! - **CA-1** exactly the codes of the span change. A nibble of a shared first or last byte that belongs to a
//!   neighbour keeps its value.
//! - **CA-2** one f32 multiplication per element, then one rounding to the element type.
//!
//! The destination begins with the byte that holds the first element of the span. The factors of a row of
//! blocks are first spread over their columns, so that one loop without branches does the rest, whatever the
//! block width.

use super::minifloat::{Minifloat, encode};
use super::shape::Shape;
use super::span::Span;
use super::via::through;

/// Columns worked on at a time: a multiple of every block width, small enough for the first-level cache.
const CHUNK: usize = 2048;

/// One factor per block of `height` × `WIDTH`. Elements of four bits are packed two to a byte, the even one in
/// the low nibble; `shape.cols` is even then, so the parity of a column is the parity of the flat index.
#[inline(always)]
pub(super) fn by_block<F: Minifloat, const WIDTH: usize, const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    let rows = span.rows(shape.cols);
    let grid_cols = shape.cols.div_ceil(WIDTH);
    let mut column_factors = [0.0; CHUNK];
    for grid_row in rows.start / height..rows.end.div_ceil(height) {
        let factors = &factors[grid_row * grid_cols..][..grid_cols];
        let rows = rows.start.max(grid_row * height)..rows.end.min((grid_row + 1) * height);
        for (left, factors) in (0..shape.cols).step_by(CHUNK).zip(factors.chunks(CHUNK / WIDTH)) {
            for (columns, &factor) in column_factors.as_chunks_mut::<WIDTH>().0.iter_mut().zip(factors) {
                columns.fill(factor);
            }
            for row in rows.clone() {
                let part = span.columns(row, shape.cols, left..left + CHUNK);
                if part.is_empty() {
                    continue;
                }
                let index = row * shape.cols + part.start;
                let values = &master[index - span.start..][..part.len()];
                let factors = &column_factors[part.start - left..][..part.len()];
                if F::BITS == 4 {
                    let bytes = &mut data[index / 2 - span.start / 2..];
                    to_nibbles::<F, BF16>(!index.is_multiple_of(2), values, factors, bytes);
                } else {
                    to_bytes::<F, BF16>(values, factors, &mut data[index - span.start..][..part.len()]);
                }
            }
        }
    }
}

/// One byte per element; one factor for all.
#[inline(always)]
pub(super) fn by_tensor<F: Minifloat, const BF16: bool>(master: &[f32], factor: f32, data: &mut [u8]) {
    let factors = [factor; CHUNK];
    for (values, codes) in master.chunks(CHUNK).zip(data.chunks_mut(CHUNK)) {
        to_bytes::<F, BF16>(values, &factors, codes);
    }
}

/// The loop everything comes down to.
#[inline(always)]
fn to_bytes<F: Minifloat, const BF16: bool>(values: &[f32], factors: &[f32], codes: &mut [u8]) {
    for ((code, &value), &factor) in codes.iter_mut().zip(values).zip(factors) {
        *code = encode::<F>(through::<BF16>(value) * factor);
    }
}

/// [`to_bytes`], then packed. `odd` says that the first element is the high nibble of the first byte. A first or
/// last byte that is not filled keeps its other nibble. At most [`CHUNK`] values, and at least one.
#[inline(always)]
fn to_nibbles<F: Minifloat, const BF16: bool>(odd: bool, values: &[f32], factors: &[f32], bytes: &mut [u8]) {
    let (alone, values) = values.split_at(usize::from(odd));
    let (first_byte, bytes) = bytes.split_at_mut(alone.len());
    for ((byte, &value), &factor) in first_byte.iter_mut().zip(alone).zip(factors) {
        *byte = *byte & 0x0F | encode::<F>(through::<BF16>(value) * factor) << 4;
    }

    // Pairs of codes, the even element in the low byte.
    let mut pairs = [0u16; CHUNK / 2];
    let codes: &mut [u8] = bytemuck::cast_slice_mut(&mut pairs);
    to_bytes::<F, BF16>(values, &factors[alone.len()..], codes);
    let (filled, last) = bytes.split_at_mut(values.len() / 2);
    for (byte, pair) in filled.iter_mut().zip(&pairs) {
        let pair = u16::from_le(*pair);
        *byte = (pair | pair >> 4) as u8;
    }
    if !values.len().is_multiple_of(2) {
        last[0] = last[0] & 0xF0 | u16::from_le(pairs[values.len() / 2]) as u8;
    }
}
