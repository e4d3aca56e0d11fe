//! Weights to quantize: seeded, and the same on every machine.

use warpweft_format::{Shape, Via};

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
pub fn transposed(shape: Shape, values: &[f32]) -> Vec<f32> {
    turned(shape, values)
}

/// The same of bytes.
pub fn transposed_bytes(shape: Shape, values: &[u8]) -> Vec<u8> {
    turned(shape, values)
}

fn turned<T: Copy + Default>(shape: Shape, values: &[T]) -> Vec<T> {
    const ROWS: usize = 64;
    let mut turned = vec![T::default(); values.len()];
    // A few rows at a time, which stay in the cache.
    for (part, rows) in values.chunks(ROWS * shape.cols).enumerate() {
        for (column, turned) in turned.chunks_exact_mut(shape.rows).enumerate() {
            let column = rows[column..].iter().step_by(shape.cols);
            turned[ROWS * part..].iter_mut().zip(column).for_each(|(to, from)| *to = *from);
        }
    }
    turned
}

/// Each value times `factor`.
pub fn scaled(values: &[f32], factor: f32) -> Vec<f32> {
    values.iter().map(|value| value * factor).collect()
}

/// What a kernel sees of a weight.
pub fn seen(via: Via, weight: &[f32]) -> Vec<f32> {
    match via {
        Via::Bf16 => weight.iter().copied().map(to_bf16).collect(),
        Via::None => weight.to_vec(),
    }
}

/// The largest magnitude of what a kernel sees of it.
pub fn amax(via: Via, weight: &[f32]) -> f32 {
    let seen = |x: &f32| if via == Via::Bf16 { to_bf16(*x) } else { *x };
    weight.iter().fold(0.0, |amax: f32, x| amax.max(seen(x).abs()))
}

/// Rounded to bfloat16.
pub fn to_bf16(value: f32) -> f32 {
    half::bf16::from_f32(value).to_f32()
}
