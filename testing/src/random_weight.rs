//! Weights to quantize: seeded, and the same on every machine.

use warpweft_format::Shape;

/// A counter-based generator: value `n` of a seed does not depend on the others.
pub fn bits(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(n.wrapping_mul(0xD1B5_4A32_D192_ED03));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// About normal, σ 0.02, as initialized weights are; one in 64 is a hundred times larger.
pub fn normal(shape: Shape, seed: u64) -> Vec<f32> {
    let uniform = |n: u64| (bits(seed, n) >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
    (0..shape.elements() as u64)
        .map(|at| {
            let sum: f32 = (0..12).map(|part| uniform(at * 13 + part)).sum();
            let outlier = if bits(seed, at * 13 + 12).is_multiple_of(64) { 100.0 } else { 1.0 };
            sum * 0.02 * outlier
        })
        .collect()
}

/// Any bit patterns that bfloat16 can hold: all exponents, subnormals and both zeros, nothing that rounds to
/// infinity.
pub fn wild(shape: Shape, seed: u64) -> Vec<f32> {
    (0..shape.elements() as u64)
        .map(|at| {
            let value = f32::from_bits(bits(seed, at) as u32);
            if to_bf16(value).is_finite() { value } else { 0.0 }
        })
        .collect()
}

/// The transpose of a matrix of `shape`.
pub fn transposed<T: Copy>(shape: Shape, values: &[T]) -> Vec<T> {
    (0..shape.elements()).map(|at| values[at % shape.rows * shape.cols + at / shape.rows]).collect()
}

/// Rounded to bfloat16.
pub fn to_bf16(value: f32) -> f32 {
    half::bf16::from_f32(value).to_f32()
}
