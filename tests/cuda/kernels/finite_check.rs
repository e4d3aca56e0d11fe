//! The finite check: values from which training cannot resume are found.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::FiniteCheckOperand;
use warpweft_format::ElementType;
use warpweft_plan::op::Vote;

use crate::gpu::Gpu;

const VOTE: Vote = Vote {
    verdict: Vote::CLEAN,
    clip: 1.0,
    norm: 0.0,
    step: 1,
    fault_rank: 0,
    fault_call: 0,
    unscale: 1.0,
    reserved: 0,
};

/// One value of three tensors, wherever it is: in whole tiles, after them, and where no 16 bytes begin.
#[test]
fn one_value_beyond_its_tensor_s_bound_sets_the_word_and_the_bound_itself_does_not() {
    let Some(gpu) = Gpu::open("looking for values that are not finite") else { return };
    const LENGTHS: [usize; 3] = [10_000, 3, 4_097];
    let bounds = [1.0_f32, f32::MAX, f32::from_bits(0x7F7F_7FFF)];
    let on_vote = gpu.buffer(&[VOTE]);
    let on_skip = gpu.buffer(&[Vote { verdict: Vote::NON_FINITE, ..VOTE }]);
    for skewed in [0, 1] {
        for (which, at) in [(0, 0), (0, 4_095), (0, 8_192), (0, 9_999), (1, 2), (2, 0), (2, 4_096)] {
            let bound = bounds[which];
            for value in [bound, -bound, bound.next_up(), f32::NEG_INFINITY, f32::NAN] {
                let tensors: Vec<_> = (0..3)
                    .map(|number| {
                        let mut values = vec![0.5_f32; skewed + LENGTHS[number]];
                        if number == which {
                            values[skewed + at] = value;
                        }
                        gpu.buffer(&values)
                    })
                    .collect();
                let operands: Vec<_> = (0..3)
                    .map(|number| FiniteCheckOperand {
                        values: tensors[number].address().plus(4 * skewed),
                        elements: LENGTHS[number],
                        largest: bounds[number],
                    })
                    .collect();
                let goes_on = value.abs() <= bound;
                let what = format!("{value} at {at} of tensor {which}, {skewed} elements on");
                for (vote, skips) in [(&on_vote, false), (&on_skip, true)] {
                    let on_word = gpu.buffer(&[0_u32]);
                    let says = (on_word.address(), 1);
                    gpu.run(gpu.kernels.finite_check(ElementType::F32, &operands, vote.address(), says));
                    let told = !goes_on && !skips;
                    assert_eq!(on_word.read(), [u32::from(told)], "{what}, skips {skips}");
                }
                let alone = gpu.buffer(&[0_u32]);
                let says = (alone.address(), 1);
                gpu.run(gpu.kernels.finite_check(
                    ElementType::F32,
                    &operands[which..=which],
                    on_vote.address(),
                    says,
                ));
                assert_eq!(alone.read(), [u32::from(!goes_on)], "{what}, alone");
            }
        }
    }
}

/// Gradients as calls write them: without a vote, in f32 and in bf16, in whole tiles, after them, and where
/// no 16 bytes begin.
#[test]
fn of_gradients_that_are_not_finite_the_first_that_was_inspected_leaves_its_number() {
    let Some(gpu) = Gpu::open("inspecting gradients") else { return };
    const LENGTH: usize = 10_001;
    let inspect = |element, address, number, word| {
        let operand = [FiniteCheckOperand { values: address, elements: LENGTH, largest: f32::MAX }];
        gpu.run(gpu.kernels.finite_check(element, &operand, DeviceAddress::NULL, (word, number)));
    };
    for skewed in [0, 1] {
        for at in [0, 1, 4_095, 8_192, LENGTH - 1] {
            for value in [f32::MAX, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = vec![0.5_f32; skewed + LENGTH];
                values[skewed + at] = value;
                let halves: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                let (wide, narrow) = (gpu.buffer(&values), gpu.buffer(&halves));
                let word = gpu.buffer(&[0_u32]);
                inspect(ElementType::F32, wide.address().plus(4 * skewed), 7, word.address());
                let first = if value.is_finite() { 0 } else { 7 };
                assert_eq!(word.read(), [first], "f32, {value} at {at}");
                // f32::MAX rounds to infinity in bf16.
                inspect(ElementType::Bf16, narrow.address().plus(2 * skewed), 9, word.address());
                assert_eq!(word.read(), [if first == 0 { 9 } else { first }], "bf16, {value} at {at}");
            }
        }
    }
}
