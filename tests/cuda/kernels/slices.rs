//! Sums of the slices of gradients that ranks give each other, against the CPU backend's order of operations.

use half::bf16;
use warpweft_cuda::kernels::SlicesOperand;
use warpweft_format::{ElementType, dequantize_mxfp8, quantize_mxfp8};
use warpweft_plan::op::{SumTarget, WireType};
use warpweft_testing::golden_file::assert_bytes;

use super::gradients::{LENGTHS, bytes_of, same, same_squares, unwritten, values_of};
use super::values::{Kind, values};
use crate::gpu::Gpu;

/// In one pass the bits of two: a sum in rank order, and what accumulating it makes.
#[test]
fn slices_are_summed_in_rank_order_and_accumulated_in_the_same_pass() {
    let Some(gpu) = Gpu::open("sums of slices") else { return };
    for ranks in [1, 2, 3, 4, 8, 11] {
        for element in [ElementType::F32, ElementType::Bf16] {
            sum_slices(&gpu, ranks, element, Kind::Special);
        }
    }
}

/// In rank order too, whatever is read or left in MXFP8; of one rank it is a gradient that is rounded. Squares are
/// taken of main grads.
#[test]
fn slices_in_mxfp8_are_summed_and_sums_are_left_in_it_as_on_the_cpu() {
    let Some(gpu) = Gpu::open("sums of slices in MXFP8") else { return };
    for ranks in [1, 2, 3, 8] {
        for how in [
            (WireType::F32, SumTarget::Quantized),
            (WireType::Bf16, SumTarget::Quantized),
            (WireType::Mxfp8, SumTarget::Quantized),
            (WireType::Mxfp8, SumTarget::Rows),
            (WireType::Mxfp8, SumTarget::First),
            (WireType::Mxfp8, SumTarget::More),
        ] {
            [Kind::Special, Kind::Wide].into_iter().for_each(|kind| sum_blocks(&gpu, ranks, how, kind));
        }
    }
}

fn sum_blocks(gpu: &Gpu, ranks: usize, (element, target): (WireType, SumTarget), kind: Kind) {
    let lengths = [0, 32, 256, 4096, 4128, 20_000, 100_032];
    let of_rank = |rank: usize, n: usize| values(n, kind, (rank * 1000 + n) as u64);
    let bytes: Vec<Vec<Vec<u8>>> = lengths
        .iter()
        .map(|n| (0..ranks).map(|rank| travelling(element, &of_rank(rank, *n))).collect())
        .collect();
    let on_slices: Vec<Vec<_>> = bytes
        .iter()
        .enumerate()
        .map(|(at, slices)| slices.iter().map(|one| gpu.buffer_at(one, at % 2 * 4)).collect())
        .collect();
    let before: Vec<_> = lengths.iter().map(|n| values(*n, Kind::Wide, *n as u64 + 7)).collect();
    let on_into: Vec<_> = before
        .iter()
        .enumerate()
        .map(|(at, before)| gpu.buffer_at(&travelling(target.wire(), before), at / 2 % 2 * 4))
        .collect();
    // All elements count, or none of the last ones, or nobody asks, as nobody does of what is no main grad.
    let counted = |at: usize| {
        let asked = [Some(lengths[at]), Some(lengths[at] * 4 / 5), None][(at + ranks) / 2 % 3];
        asked.filter(|_| target.accumulates())
    };
    let on_squares: Vec<_> = lengths.iter().map(|n| gpu.buffer(&unwritten(*n))).collect();
    let operands: Vec<_> = (0..lengths.len())
        .map(|at| SlicesOperand {
            slices: on_slices[at].iter().map(|slice| slice.address()).collect(),
            into: on_into[at].address(),
            elements: lengths[at],
            target,
            squares: counted(at).map(|counted| (on_squares[at].address(), counted)),
        })
        .collect();
    let factor = 0.25;
    gpu.run(gpu.kernels.sum_slices(element, &operands, factor));
    for (at, n) in lengths.into_iter().enumerate() {
        let mut expected = vec![0.0_f32; n];
        for (rank, slice) in bytes[at].iter().enumerate() {
            let values = arrived(element, slice, n);
            let add = |(sum, value): (&mut f32, &f32)| *sum = if rank == 0 { *value } else { *sum + value };
            expected.iter_mut().zip(&values).for_each(add);
        }
        for (sum, before) in expected.iter_mut().zip(&before[at]) {
            match target {
                SumTarget::First => *sum *= factor,
                SumTarget::More => *sum = before + *sum * factor,
                SumTarget::Rows | SumTarget::Rounded | SumTarget::Quantized => {}
            }
        }
        let what = format!("{n} of {ranks} ranks in {element} as {target:?}");
        let found: Vec<u8> = on_into[at].read();
        match target {
            SumTarget::Quantized => assert_bytes(&what, &found, &travelling(target.wire(), &expected)),
            _ => same(&what, &bytemuck::pod_collect_to_vec(&found), &expected),
        }
        same_squares(&what, on_squares[at].read(), counted(at).map(|counted| (&*expected, counted)), n);
    }
}

/// Values as a rank sends them.
fn travelling(wire: WireType, values: &[f32]) -> Vec<u8> {
    match wire {
        WireType::F32 => bytes_of(ElementType::F32, values),
        WireType::Bf16 => bytes_of(ElementType::Bf16, values),
        WireType::Mxfp8 => {
            let mut unit = vec![0; wire.bytes(values.len())];
            let (codes, scales) = unit.split_at_mut(values.len());
            quantize_mxfp8(values, codes, scales);
            unit
        }
    }
}

/// What arrives of them.
fn arrived(wire: WireType, bytes: &[u8], elements: usize) -> Vec<f32> {
    match wire {
        WireType::F32 => values_of(ElementType::F32, bytes),
        WireType::Bf16 => values_of(ElementType::Bf16, bytes),
        WireType::Mxfp8 => {
            let mut values = vec![0.0; elements];
            dequantize_mxfp8(&bytes[..elements], &bytes[elements..], &mut values);
            values
        }
    }
}

/// Of real rows alone, which may end anywhere, in the order that a norm would add them in.
#[test]
fn squares_are_taken_of_what_a_sum_leaves() {
    let Some(gpu) = Gpu::open("squares of sums") else { return };
    for ranks in [1, 2, 3, 8] {
        for element in [ElementType::F32, ElementType::Bf16] {
            sum_slices(&gpu, ranks, element, Kind::Wide);
        }
    }
}

fn sum_slices(gpu: &Gpu, ranks: usize, element: ElementType, kind: Kind) {
    let factor = 1.0 / 3.0_f32;
    let targets = [SumTarget::Rows, SumTarget::First, SumTarget::More, SumTarget::Rounded];
    let target = |at: usize| targets[(at + ranks) % 4];
    let slice = |rank: usize, length: usize| {
        let mut slice = values(length, kind, (rank * 1000 + length) as u64);
        if element == ElementType::Bf16 {
            slice.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
        }
        slice
    };
    let slices: Vec<Vec<_>> =
        LENGTHS.iter().map(|n| (0..ranks).map(|rank| slice(rank, *n)).collect()).collect();
    let before: Vec<_> = LENGTHS.iter().map(|n| values(*n, Kind::Wide, *n as u64 + 7)).collect();
    let on_slices: Vec<Vec<_>> = slices
        .iter()
        .enumerate()
        .map(|(at, slices)| {
            let after = at % 2 * element.bytes();
            slices.iter().map(|slice| gpu.buffer_at(&bytes_of(element, slice), after)).collect()
        })
        .collect();
    let on_into: Vec<_> = before.iter().enumerate().map(|(at, v)| gpu.buffer_at(v, at % 4 / 3 * 4)).collect();
    // All elements count, or none of the last ones, or nobody asks, as nobody does of what is rounded.
    let counted = |at: usize| {
        let asked = [Some(LENGTHS[at]), Some(LENGTHS[at] * 4 / 5), None][(at + ranks) / 2 % 3];
        asked.filter(|_| target(at) != SumTarget::Rounded)
    };
    let on_squares: Vec<_> = (0..LENGTHS.len()).map(|at| gpu.buffer(&unwritten(LENGTHS[at]))).collect();
    let operands: Vec<_> = (0..LENGTHS.len())
        .map(|at| SlicesOperand {
            slices: on_slices[at].iter().map(|slice| slice.address()).collect(),
            into: on_into[at].address(),
            elements: LENGTHS[at],
            target: target(at),
            squares: counted(at).map(|counted| (on_squares[at].address(), counted)),
        })
        .collect();
    let wire = if element == ElementType::Bf16 { WireType::Bf16 } else { WireType::F32 };
    gpu.run(gpu.kernels.sum_slices(wire, &operands, factor));
    for at in 0..LENGTHS.len() {
        let mut expected = slices[at][0].clone();
        for slice in &slices[at][1..] {
            expected.iter_mut().zip(slice).for_each(|(sum, value)| *sum += value);
        }
        for (sum, before) in expected.iter_mut().zip(&before[at]) {
            match target(at) {
                SumTarget::Rows => {}
                SumTarget::Rounded => *sum = bf16::from_f32(*sum).to_f32(),
                SumTarget::Quantized => unreachable!("it has a test of its own"),
                SumTarget::First => *sum *= factor,
                SumTarget::More => *sum = before + *sum * factor,
            }
        }
        let what = format!("{element:?} of {ranks} ranks, {} as {:?}", LENGTHS[at], target(at));
        let found: Vec<f32> = on_into[at].read();
        let found = match target(at) {
            SumTarget::Rounded => {
                let halves: Vec<u16> = bytemuck::pod_collect_to_vec(&found);
                halves[..found.len()].iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect()
            }
            _ => found,
        };
        same(&what, &found, &expected);
        same_squares(
            &what,
            on_squares[at].read(),
            counted(at).map(|counted| (&*expected, counted)),
            LENGTHS[at],
        );
    }
}
