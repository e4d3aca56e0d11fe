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

/// Fills `values` with those that `bytes` are in such a type; of another there are none.
pub fn to_f32(dtype: Dtype, bytes: &[u8], values: &mut [f32]) {
    // A loop for each dtype, and of bf16 one that the compiler does many at once.
    match dtype {
        Dtype::BF16 => each(bytes, values, |word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16)),
        Dtype::F16 => each(bytes, values, |word| f16::from_le_bytes(word).to_f32()),
        Dtype::F32 => each(bytes, values, f32::from_le_bytes),
        _ => {}
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

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn values_of_every_float_type_are_exact_and_of_others_there_are_none() {
        let expected = [1.5, -0.0, 6.1e-5_f32, f32::INFINITY];
        let expected = expected.map(|value| bf16::from_f32(value).to_f32());
        let in_f32 = expected.map(f32::to_le_bytes).concat();
        let in_bf16 = expected.map(|value| bf16::from_f32(value).to_le_bytes()).concat();
        let in_f16 = expected.map(|value| f16::from_f32(value).to_le_bytes()).concat();
        for (dtype, bytes) in [(Dtype::F32, in_f32), (Dtype::BF16, in_bf16), (Dtype::F16, in_f16)] {
            assert_eq!(values(dtype, &bytes), expected, "{dtype}");
        }
        assert_eq!(values(Dtype::I8, &[1, 2, 3, 4]), [0.0; 0]);
    }
}
