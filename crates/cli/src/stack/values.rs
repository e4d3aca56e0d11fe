//! Initial weights and inputs of a stack.
//!
//! Law: element i of a tensor depends on the tensor's seed and i alone, so shards drawn by ranks on the host
//! are the parts of the weight that `uniform` of `kernels/elementwise.cu` draws on a GPU.

use warpweft_base::noise::mixed;

/// Seed of the first block's input.
pub(super) const INPUT: u32 = 0;

/// Largest magnitude of the input: a standard deviation of 0.1.
pub(crate) const INPUT_AMPLITUDE: f32 = 0.173_205_08;

/// Seed of a weight, by its number.
pub(super) fn seed(weight: usize) -> u32 {
    u32::try_from(weight + 1).unwrap_or(u32::MAX)
}

/// Largest magnitude of a weight of so many inputs, which keeps the residual stream in range over many blocks.
pub(crate) fn amplitude(inputs: usize) -> f32 {
    1.0 / (inputs as f32).sqrt()
}

/// Fills `values`, of which the first is element `first` of the tensor.
pub(crate) fn fill(seed: u32, amplitude: f32, first: usize, values: &mut [f32]) {
    for (at, value) in values.iter_mut().enumerate() {
        *value = uniform(seed, (first + at) as u64) * amplitude;
    }
}

/// A number in [−1, 1) of 24 bits.
fn uniform(seed: u32, index: u64) -> f32 {
    let z = mixed((u64::from(seed) << 40).wrapping_add(index));
    ((z >> 40) as f32 - 8_388_608.0) * (1.0 / 8_388_608.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SK-1: what a rank begins with are its rows of what the resident stack begins with.
    #[test]
    fn rows_drawn_apart_are_those_of_the_whole() {
        let mut whole = [0.0; 64];
        fill(7, 0.5, 0, &mut whole);
        let mut part = [0.0; 24];
        fill(7, 0.5, 40, &mut part);
        assert_eq!(whole[40..], part);
        assert!(whole.iter().all(|value| value.abs() <= 0.5));
    }

    #[test]
    fn numbers_are_spread_as_a_uniform_distribution_is() {
        let mut values = vec![0.0; 1 << 16];
        fill(1, 1.0, 0, &mut values);
        let count = values.len() as f64;
        let mean = values.iter().copied().map(f64::from).sum::<f64>() / count;
        let square = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.01 && (square - 1.0 / 3.0).abs() < 0.01, "{mean} {square}");
        let mut other = vec![0.0; 1 << 16];
        fill(2, 1.0, 0, &mut other);
        let along: f64 = values.iter().zip(&other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
        assert!((along / count).abs() < 0.01, "{along}");
    }
}
