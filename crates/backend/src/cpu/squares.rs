//! Sums of squares of main grads, in the one order that they have.
//!
//! Laws:
//! - Squares are exact in f64 and added in f64, in an order that follows from the lengths of main grads alone. It is
//!   that of the kernels (`kernels/squares.cuh`), so the norm has the same bits on a device, and no matter which
//!   task takes the squares of a block.
//! - A *block* is [`SQUARED_TOGETHER`] elements. Four neighbours are a thread's, with those 1024 and more further on;
//!   it adds each of the four by itself, then them in pairs. Halves of 32 threads are added onto halves, and such warps
//!   in their order.
//! - A *group* is 8 blocks of a weight, as far from each other as it has groups: halves are added onto halves.
//! - Groups of all weights, in their order, go to 256 threads in turn, and these are added as those of a block.

use warpweft_plan::op::SQUARED_TOGETHER;

const THREADS: usize = 256;
const WARP: usize = 32;
const GROUP: usize = 8;

/// The squares of a block, or of as many elements as there are of it.
pub(super) fn of_block(values: &[f32]) -> f64 {
    let mut sums = [0.0_f64; 4 * THREADS];
    for stretch in values.chunks(4 * THREADS) {
        for (sum, value) in sums.iter_mut().zip(stretch) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let mut threads = [0.0; THREADS];
    for (thread, [first, second, third, fourth]) in threads.iter_mut().zip(sums.as_chunks().0) {
        *thread = (first + second) + (third + fourth);
    }
    of_threads(&mut threads)
}

/// The squares of a rank, weight after weight.
pub(super) struct OfRank {
    threads: [f64; THREADS],
    groups: usize,
}

impl OfRank {
    pub(super) const fn new() -> Self {
        Self { threads: [0.0; THREADS], groups: 0 }
    }

    /// Adds the squares of a weight: `block` gives the sum of each of its `blocks`, by number.
    pub(super) fn add(&mut self, blocks: usize, block: impl Fn(usize) -> f64) {
        let groups = blocks.div_ceil(GROUP);
        for group in 0..groups {
            let mut sums = [0.0; GROUP];
            for (sum, number) in sums.iter_mut().zip((group..blocks).step_by(groups)) {
                *sum = block(number);
            }
            self.threads[self.groups % THREADS] += halved(&mut sums);
            self.groups += 1;
        }
    }

    /// The squares of main grads as they are.
    pub(super) fn add_values(&mut self, values: &[f32]) {
        let blocks = values.len().div_ceil(SQUARED_TOGETHER);
        self.add(blocks, |block| {
            let values = &values[block * SQUARED_TOGETHER..];
            of_block(&values[..values.len().min(SQUARED_TOGETHER)])
        });
    }

    pub(super) fn sum(mut self) -> f64 {
        of_threads(&mut self.threads)
    }
}

fn of_threads(threads: &mut [f64; THREADS]) -> f64 {
    threads.chunks_mut(WARP).map(halved).reduce(|sum, warp| sum + warp).unwrap_or_default()
}

/// Halves added onto halves until one is left, of a power of two.
fn halved(sums: &mut [f64]) -> f64 {
    let mut half = sums.len() / 2;
    while half > 0 {
        let (onto, added) = sums.split_at_mut(half);
        onto.iter_mut().zip(added).for_each(|(sum, other)| *sum += *other);
        half /= 2;
    }
    sums.first().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_rank(weights: &[&[f32]]) -> f64 {
        let mut squares = OfRank::new();
        weights.iter().for_each(|values| squares.add_values(values));
        squares.sum()
    }

    #[test]
    fn squares_are_summed_without_losing_small_ones() {
        let mut values = vec![1e-4_f32; 1 << 20];
        values[0] = 1e2;
        let expected = 1e4 + (values.len() - 1) as f64 * (f64::from(1e-4_f32) * f64::from(1e-4_f32));
        assert!((of_rank(&[&values]) / expected - 1.0).abs() < 1e-9);
        assert!(of_rank(&[&[f32::MAX; 3]]).is_finite());
        assert!(of_rank(&[&[1.0, f32::NAN]]).is_nan());
    }

    /// Powers of two, whose sums are exact: each element is in it once, wherever lengths end.
    #[test]
    fn every_element_is_squared_once() {
        for length in [0, 1, 3, 1023, 4095, 4096, 4097, 32_768, 32_769, 100_003] {
            let values: Vec<f32> = (0..length).map(|at| [1.0, 2.0, 4.0, 8.0, 16.0][at % 5]).collect();
            let expected: f64 = values.iter().map(|value| f64::from(value * value)).sum();
            assert_eq!(of_rank(&[&values]), expected, "{length}");
            assert_eq!(of_rank(&[&values, &[3.0], &values]), 2.0 * expected + 9.0, "{length}");
        }
    }

    /// What blocks have by themselves is what the whole has.
    #[test]
    fn squares_of_blocks_that_were_taken_before_give_the_same_bits() {
        let values: Vec<f32> = (0..100_003_u32).map(|at| (at * 7919 % 10_007) as f32 * 0.37 - 1e3).collect();
        let taken: Vec<f64> = values.chunks(SQUARED_TOGETHER).map(of_block).collect();
        let mut squares = OfRank::new();
        squares.add(taken.len(), |block| taken[block]);
        assert_eq!(squares.sum().to_bits(), of_rank(&[&values]).to_bits());
        // Another order gives other bits, or this would say nothing.
        assert_ne!(taken.iter().sum::<f64>().to_bits(), of_rank(&[&values]).to_bits());
    }
}
