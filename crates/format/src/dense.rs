//! f32 and bf16: no blocks, no scales. The stages are the same, so that a bucket needs no special case.
//!
//! An element is its little-endian bytes. f32 does not round, and bf16 rounds to nearest even, whatever
//! [`super::Via`] says.

use super::via::{Value, round_to_bf16};

/// f32 bytes of a span.
#[inline(always)]
pub(super) fn cast_f32(master: &[f32], data: &mut [u8]) {
    for (bytes, &value) in data.as_chunks_mut::<4>().0.iter_mut().zip(master) {
        *bytes = value.to_le_bytes();
    }
}

/// bf16 bytes of a span.
#[inline(always)]
pub(super) fn cast_bf16(master: &[f32], data: &mut [u8]) {
    for (bytes, &value) in data.as_chunks_mut::<2>().0.iter_mut().zip(master) {
        *bytes = ((round_to_bf16(value).to_bits() >> 16) as u16).to_le_bytes();
    }
}

/// Values of f32 bytes.
#[inline(always)]
pub(super) fn dequantize_f32<V: Value>(data: &[u8], out: &mut [V]) {
    for (bytes, out) in data.as_chunks::<4>().0.iter().zip(out) {
        *out = V::of(f32::from_le_bytes(*bytes));
    }
}

/// Values of bf16 bytes.
#[inline(always)]
pub(super) fn dequantize_bf16<V: Value>(data: &[u8], out: &mut [V]) {
    for (bytes, out) in data.as_chunks::<2>().0.iter().zip(out) {
        *out = V::of(f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16));
    }
}
