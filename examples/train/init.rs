//! Deterministic randomness: initial weights and the places where batches begin.
//!
//! Law: a value depends on the seed, the name of what is drawn and its index, on nothing else; not on
//! the number of ranks, not on the order of calls. Only integer and exactly rounded operations are
//! used, so every machine draws the same bits.

use crate::model::{Initial, Parameter};

/// A stream of random numbers (SplitMix64: Steele, Lea and Flood 2014).
pub(crate) struct Stream(u64);

impl Stream {
    /// A stream of its own for each key under this seed.
    pub(crate) fn keyed(seed: u64, keys: impl IntoIterator<Item = u64>) -> Self {
        Stream(keys.into_iter().fold(seed, |state, key| Stream(state ^ mix(key)).bits()))
    }

    /// 64 random bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A uniform index below `bound`, which is not zero.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Uniform in [-1, 1).
    pub(crate) fn symmetric(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    }
}

fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The initial master weight of a parameter, `rows · cols` elements, row-major.
pub(crate) fn initial(parameter: &Parameter, seed: u64) -> Vec<f32> {
    let mut stream = Stream::keyed(seed, parameter.name.bytes().map(u64::from));
    let mut draw = || match parameter.initial {
        // A uniform variable on ±a has the standard deviation a/√3.
        Initial::Uniform { deviation } => deviation * 3f32.sqrt() * stream.symmetric(),
        Initial::Ones => 1.0,
    };
    (0..parameter.rows * parameter.cols).map(|_| draw()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_depends_on_seed_and_name_alone_and_has_the_declared_deviation() {
        let parameter = |name: &str| Parameter {
            name: name.to_owned(),
            rows: 128,
            cols: 128,
            initial: Initial::Uniform { deviation: 0.02 },
        };
        let weight = initial(&parameter("a"), 1);
        assert_eq!(weight, initial(&parameter("a"), 1));
        assert_ne!(weight, initial(&parameter("b"), 1));
        assert_ne!(weight, initial(&parameter("a"), 2));
        let (mean, square) = weight.iter().fold((0.0, 0.0), |(m, s), w| (m + w, s + w * w));
        let count = weight.len() as f32;
        assert!((mean / count).abs() < 1e-3);
        assert!(((square / count).sqrt() - 0.02).abs() < 5e-4);
    }
}
