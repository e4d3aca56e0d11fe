//! Codes of a span: multiply by the encode factor of the block, convert, store.
//!
//! Laws:
//! - **CA-1** exactly the codes of the span change. A nibble of a shared first or last byte that belongs to a
//!   neighbour keeps its value.
//! - **CA-2** one f32 multiplication per element, then one rounding to the element type.
//!
//! The destination begins with the byte that holds the first element of the span. The factors of a piece of a
//! row are first spread over its elements, so that one loop without branches does the rest, whatever the
//! block width.

use super::minifloat::{E2m1, Minifloat, encode};
use super::shape::Shape;
use super::span::Span;
use super::via::through;

/// Elements worked on at a time: even, and small enough for the first-level cache.
const CHUNK: usize = 512;

/// One byte per element; one factor per block of `height` × `WIDTH`.
#[inline(always)]
pub(super) fn to_bytes<F: Minifloat, const WIDTH: usize, const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    let grid_cols = shape.cols.div_ceil(WIDTH);
    let mut spread_factors = [0.0; CHUNK];
    for segment in span.segments(shape.cols) {
        let factors = &factors[segment.row / height * grid_cols..][..grid_cols];
        let values = master[segment.offset..][..segment.len].chunks(CHUNK);
        let codes = data[segment.offset..][..segment.len].chunks_mut(CHUNK);
        for ((column, values), codes) in (segment.column..).step_by(CHUNK).zip(values).zip(codes) {
            let factors = spread::<WIDTH>(factors, column, &mut spread_factors[..values.len()]);
            encode_each::<F, BF16>(values, factors, codes);
        }
    }
}

/// One byte per element; one factor for all.
#[inline(always)]
pub(super) fn to_bytes_by_one<F: Minifloat, const BF16: bool>(master: &[f32], factor: f32, data: &mut [u8]) {
    let factors = [factor; CHUNK];
    for (values, codes) in master.chunks(CHUNK).zip(data.chunks_mut(CHUNK)) {
        encode_each::<F, BF16>(values, &factors[..values.len()], codes);
    }
}

/// Two E2M1 codes per byte, the even element in the low nibble; one factor per block of `height` × 16.
/// `shape.cols` is even, so the parity of a column is the parity of the flat index.
#[inline(always)]
pub(super) fn to_nibbles<const BF16: bool>(
    height: usize,
    shape: Shape,
    span: Span,
    master: &[f32],
    factors: &[f32],
    data: &mut [u8],
) {
    const WIDTH: usize = 16;
    let grid_cols = shape.cols.div_ceil(WIDTH);
    let mut spread_factors = [0.0; CHUNK];
    let mut codes = [0; CHUNK];
    for segment in span.segments(shape.cols) {
        let factors = &factors[segment.row / height * grid_cols..][..grid_cols];
        let mut index = span.start + segment.offset;
        let mut column = segment.column;
        let mut values = &master[segment.offset..][..segment.len];
        while !values.is_empty() {
            // An odd first element goes alone, so that all other pieces begin with a byte.
            let len = if index.is_multiple_of(2) { values.len().min(CHUNK) } else { 1 };
            let (piece, rest) = values.split_at(len);
            let factors = spread::<WIDTH>(factors, column, &mut spread_factors[..len]);
            encode_each::<E2m1, BF16>(piece, factors, &mut codes[..len]);
            let bytes = &mut data[index / 2 - span.start / 2..];
            if index.is_multiple_of(2) {
                pack(&codes[..len], bytes);
            } else {
                bytes[0] = bytes[0] & 0x0F | codes[0] << 4;
            }
            (index, column, values) = (index + len, column + len, rest);
        }
    }
}

/// The factor of every element of a piece of a row: that of block `column / WIDTH` first.
#[inline(always)]
fn spread<'a, const WIDTH: usize>(factors: &[f32], column: usize, spread: &'a mut [f32]) -> &'a [f32] {
    let head = column.next_multiple_of(WIDTH) - column;
    let (head, rest) = spread.split_at_mut(head.min(spread.len()));
    head.fill(factors.get(column / WIDTH).copied().unwrap_or(0.0));
    let factors = &factors[column.div_ceil(WIDTH).min(factors.len())..];
    let (blocks, tail) = rest.as_chunks_mut::<WIDTH>();
    let full = blocks.len();
    for (block, &factor) in blocks.iter_mut().zip(factors) {
        block.fill(factor);
    }
    if let Some(&factor) = factors.get(full) {
        tail.fill(factor);
    }
    spread
}

/// The loop everything comes down to.
#[inline(always)]
fn encode_each<F: Minifloat, const BF16: bool>(values: &[f32], factors: &[f32], codes: &mut [u8]) {
    for ((code, &value), &factor) in codes.iter_mut().zip(values).zip(factors) {
        *code = encode::<F>(through::<BF16>(value) * factor);
    }
}

/// Packs pairs of codes. The low nibble of a last, unpaired code is set; the high one stays.
#[inline(always)]
fn pack(codes: &[u8], bytes: &mut [u8]) {
    let (pairs, last) = codes.as_chunks::<2>();
    for (byte, pair) in bytes.iter_mut().zip(pairs) {
        let pair = u16::from_le_bytes(*pair);
        *byte = (pair | pair >> 4) as u8;
    }
    if let [code] = last {
        let byte = &mut bytes[pairs.len()];
        *byte = *byte & 0xF0 | code;
    }
}
