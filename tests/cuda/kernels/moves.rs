//! Copies and zeroes of many ranges.

use warpweft_cuda::kernels::{CopyOperand, ZeroOperand};

use super::values::Random;
use crate::gpu::Gpu;

const LENGTHS: [usize; 8] = [0, 1, 15, 16, 17, 16_384, 16_385, 1_000_003];

#[test]
fn ranges_of_any_length_and_alignment_are_copied_and_zeroed_and_nothing_else() {
    let Some(gpu) = Gpu::open("copies and zeroes") else { return };
    let mut random = Random::new(1);
    for shift in [0, 1, 4] {
        let sources: Vec<Vec<u8>> =
            LENGTHS.iter().map(|n| (0..*n).map(|_| random.bits() as u8).collect()).collect();
        let from: Vec<_> = sources.iter().map(|source| gpu.buffer_at(source, shift)).collect();
        let to: Vec<_> = LENGTHS.iter().map(|n| gpu.buffer(&vec![0xEE_u8; *n])).collect();
        let copies: Vec<_> = (0..LENGTHS.len())
            .map(|at| CopyOperand { from: from[at].address(), to: to[at].address(), bytes: LENGTHS[at] })
            .collect();
        // Many in a launch, and one alone.
        let (last, others) = copies.split_last().unwrap();
        gpu.run(gpu.kernels.copy(others));
        gpu.run(gpu.kernels.copy(&[*last]));
        for (to, source) in to.iter().zip(&sources) {
            assert_eq!(to.read(), *source);
        }
        let zeroes: Vec<_> =
            (0..LENGTHS.len()).map(|at| ZeroOperand { to: from[at].address(), bytes: LENGTHS[at] }).collect();
        let (last, others) = zeroes.split_last().unwrap();
        gpu.run(gpu.kernels.zero(others));
        gpu.run(gpu.kernels.zero(&[*last]));
        assert!(from.iter().all(|from| from.read().iter().all(|byte| *byte == 0)));
    }
}

/// Numbers around those that a search for a tile's range looks at in one go, and empty ranges between the others.
#[test]
fn every_tile_finds_its_range_among_any_number_of_them() {
    let Some(gpu) = Gpu::open("copies of many ranges") else { return };
    let mut random = Random::new(2);
    for count in [2, 3, 4, 5, 127, 128, 129, 500, 513, 4_097, 20_000] {
        // Few of several tiles, many of one, many of none.
        let lengths: Vec<usize> = (0..count)
            .map(|_| match random.below(100) {
                0..2 => 20_000 + random.below(40_000),
                2..30 => 0,
                _ => 1 + random.below(200),
            })
            .collect();
        // A byte between two ranges stays as it is.
        let bytes: usize = lengths.iter().map(|length| length + 1).sum();
        let source: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
        let mut expected = vec![0xEE_u8; bytes];
        let (from, to) = (gpu.buffer(&source), gpu.buffer(&expected));
        let mut begin = 0;
        let mut copies = Vec::new();
        for length in lengths {
            expected[begin..begin + length].copy_from_slice(&source[begin..begin + length]);
            copies.push(CopyOperand {
                from: from.address().plus(begin),
                to: to.address().plus(begin),
                bytes: length,
            });
            begin += length + 1;
        }
        gpu.run(gpu.kernels.copy(&copies));
        assert!(to.read() == expected, "{count} ranges");
    }
}

#[test]
fn a_launch_of_nothing_does_nothing() {
    let Some(gpu) = Gpu::open("a launch of nothing") else { return };
    gpu.run(gpu.kernels.copy(&[]));
    gpu.run(gpu.kernels.zero(&[]));
    gpu.run(gpu.kernels.accumulate(&[], 1.0, true));
}
