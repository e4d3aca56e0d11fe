//! Values of the float types in which weights are kept, as f32.
//!
//! Law: the conversion is exact, and there is one of it.

use half::f16;
use safetensors::Dtype;

/// Bytes of an element of such a type; `None` for all others.
#[must_use]
pub const fn float_bytes(dtype: Dtype) -> Option<usize> {
    match dtype {
        Dtype::F32 => Some(size_of::<f32>()),
        Dtype::BF16 | Dtype::F16 => Some(size_of::<u16>()),
        _ => None,
    }
}

/// Fills `values` with those that `bytes` are in such a type.
pub fn to_f32(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    // A loop for each dtype, and of bf16 one that the compiler does many at once.
    match dtype {
        Dtype::BF16 => each(bytes, values, |word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16)),
        Dtype::F16 => each(bytes, values, |word| f16::from_le_bytes(word).to_f32()),
        _ => each(bytes, values, f32::from_le_bytes),
    }
}

/// As [`to_f32`], in a list of its own.
#[must_use]
pub fn values(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; float_bytes(dtype).map_or(0, |width| bytes.len() / width)];
    to_f32(dtype, bytes, &mut values);
    values
}

fn each<const N: usize>(bytes: &[u8], values: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(to, word)| *to = value(*word));
}
