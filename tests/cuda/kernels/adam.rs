//! Adam against the CPU's order of operations, on state of every kind, and against the golden file.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{AdamOperand, Bounds, MasterState};
use warpweft_format::{join_master, split_master};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::Vote;
use warpweft_plan::policy::{AdamMode, Moments};
use warpweft_testing::golden_file::{GoldenFile, assert_bytes};

use super::values::{Kind, values};
use crate::gpu::{Buffer, Gpu};

const SETTINGS: OptimizerSettings =
    OptimizerSettings { mode: AdamMode::AdamW, epsilon: 1e-8, bias_correction: true, max_norm: 0.0 };

/// Of those that ask nothing.
const ANY: Bounds = Bounds { master: f32::MAX, moment: f32::MAX, diverged: DeviceAddress::NULL };

/// By squaring, from the lowest bit of the exponent on.
fn power(base: f64, exponent: u32) -> f64 {
    let squares = std::iter::successors(Some(base), |square| Some(square * square));
    let bits = squares.take(32).enumerate().filter(|(bit, _)| exponent >> bit & 1 == 1);
    bits.fold(1.0, |product, (_, square)| product * square)
}

/// New master and moments of one element, rounded op by op.
#[expect(clippy::too_many_arguments, reason = "the formula has as many")]
fn element(
    s: &OptimizerSettings,
    step: u32,
    factor: f32,
    by: Hyperparameters,
    p: f32,
    m: f32,
    v: f32,
    g: f32,
) -> [f32; 3] {
    let correction = |beta: f32| match s.bias_correction {
        true => (1.0 - power(f64::from(beta), step)) as f32,
        false => 1.0,
    };
    let decoupled = s.mode == AdamMode::AdamW;
    let clipped = g * factor;
    let g = if decoupled { clipped } else { clipped + by.weight_decay * p };
    let m = by.beta1 * m + (1.0 - by.beta1) * g;
    let v = by.beta2 * v + ((1.0 - by.beta2) * g) * g;
    let u = (m / correction(by.beta1)) / ((v / correction(by.beta2)).sqrt() + s.epsilon);
    let u = if decoupled { u + by.weight_decay * p } else { u };
    [p - by.learning_rate * u, m, v]
}

const LENGTHS: [usize; 6] = [0, 1, 7, 4096, 5000, 300_001];

/// State of one weight, on the host as f32 and on the device as it is stored.
struct State {
    master: Vec<f32>,
    moments: [Vec<f32>; 2],
    gradient: Vec<f32>,
    on_master: Buffer<u8>,
    on_remainder: Buffer<i16>,
    on_moments: [Buffer<u8>; 2],
    on_gradient: Buffer<f32>,
    /// Of every weight others.
    by: Hyperparameters,
    on_by: Buffer<Hyperparameters>,
}

fn stored(values: &[f32], moments: Moments) -> Vec<u8> {
    match moments {
        Moments::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Moments::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
    }
}

fn state(gpu: &Gpu, length: usize, split: bool, moments: Moments, shifted: bool) -> State {
    let seed = length as u64;
    let master = values(length, Kind::Weights, seed);
    let read = |value: f32| match moments {
        Moments::F32 => value,
        Moments::Bf16 => bf16::from_f32(value).to_f32(),
    };
    let m: Vec<f32> = values(length, Kind::Weights, seed + 1).into_iter().map(read).collect();
    let v: Vec<f32> = values(length, Kind::Weights, seed + 2).into_iter().map(|v| read(v * v)).collect();
    let gradient = values(length, Kind::Wide, seed + 3);
    let halves = master.iter().map(|value| split_master(*value));
    let (high, low): (Vec<u16>, Vec<i16>) = halves.unzip();
    let on_master = match split {
        true => gpu.buffer_at(bytemuck::cast_slice(&high), usize::from(shifted) * 2),
        false => gpu.buffer_at(bytemuck::cast_slice(&master), usize::from(shifted) * 4),
    };
    let on_moments = [gpu.buffer(&stored(&m, moments)), gpu.buffer(&stored(&v, moments))];
    let on_gradient = gpu.buffer(&gradient);
    let on_remainder = gpu.buffer(&low);
    let own = 1.0 / (1 + length % 8) as f32;
    let by = Hyperparameters {
        learning_rate: 1e-3 * own,
        weight_decay: 0.1 * own,
        beta1: 1.0 - 0.1 * own,
        beta2: 1.0 - 0.01 * own,
    };
    let on_by = gpu.buffer(&[by]);
    State { master, moments: [m, v], gradient, on_master, on_remainder, on_moments, on_gradient, by, on_by }
}

fn operand(state: &State, split: bool) -> AdamOperand {
    let master = match split {
        true => {
            MasterState::Split { shard: state.on_master.address(), remainder: state.on_remainder.address() }
        }
        false => MasterState::Whole(state.on_master.address()),
    };
    AdamOperand {
        master,
        exp_avg: state.on_moments[0].address(),
        exp_avg_sq: state.on_moments[1].address(),
        main_grad: state.on_gradient.address(),
        hyperparameters: state.on_by.address(),
        elements: state.master.len(),
    }
}

fn check(gpu: &Gpu, settings: &OptimizerSettings, split: bool, moments: Moments, step: u32) {
    let states: Vec<_> =
        LENGTHS.iter().enumerate().map(|(at, n)| state(gpu, *n, split, moments, at % 2 == 1)).collect();
    let (clip, unscale) = (0.75_f32, 1.0 / 1024.0);
    let on_vote = gpu.buffer(&[Vote { clip, unscale, step, ..Vote::default() }]);
    let operands: Vec<_> = states.iter().map(|state| operand(state, split)).collect();
    // Not so large that all values are within, so that most launches meet one that is not.
    let on_words = [gpu.buffer(&[0_u32]), gpu.buffer(&[0_u32])];
    let all = Bounds { diverged: on_words[0].address(), ..ANY };
    let some = Bounds { master: 1.0, moment: 1e-3, diverged: on_words[1].address() };
    let chosen = if step == 1 { some } else { all };
    gpu.run(gpu.kernels.adam(settings, moments, &operands, on_vote.address(), chosen));
    let mut goes_on = true;
    for state in &states {
        let what =
            format!("{settings:?} split {split} {moments:?} step {step}, {} elements", state.master.len());
        let mut expected: [Vec<f32>; 3] = Default::default();
        for at in 0..state.master.len() {
            let [m, v] = [state.moments[0][at], state.moments[1][at]];
            let new =
                element(settings, step, clip * unscale, state.by, state.master[at], m, v, state.gradient[at]);
            goes_on &= new[0].abs() <= chosen.master && new[1..].iter().all(|new| new.abs() <= chosen.moment);
            expected.iter_mut().zip(new).for_each(|(list, value)| list.push(value));
        }
        let found: Vec<f32> = match split {
            false => {
                state.on_master.read().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            true => {
                let high = state.on_master.read();
                let high = high.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes));
                high.zip(state.on_remainder.read()).map(|(high, low)| join_master(high, low)).collect()
            }
        };
        assert_bytes(&what, bytemuck::cast_slice(&found), bytemuck::cast_slice(&expected[0]));
        for (on, expected) in state.on_moments.iter().zip(&expected[1..]) {
            assert_bytes(&what, &on.read(), &stored(expected, moments));
        }
    }
    let [all, some] = on_words.map(|word| word.read()[0]);
    let told = if step == 1 { some } else { all };
    assert_eq!(told, u32::from(!goes_on), "{settings:?} split {split} {moments:?} step {step}");
    assert_eq!(all + some, told, "a word that no launch was given");
}

/// One value of many, wherever it is, in whole tiles and after them: as large as may be, larger, no number.
#[test]
fn one_value_from_which_no_training_goes_on_sets_the_word_and_the_largest_allowed_does_not() {
    let Some(gpu) = Gpu::open("Adam that diverges") else { return };
    const LENGTH: usize = 10_000;
    // Nothing moves: the learning rate is 0, and so is what new gradients weigh.
    let settings = OptimizerSettings { bias_correction: false, ..SETTINGS };
    let still = Hyperparameters { learning_rate: 0.0, weight_decay: 0.0, beta1: 1.0, beta2: 1.0 };
    let on_vote = gpu.buffer(&[Vote { clip: 1.0, unscale: 1.0, step: 1, ..Vote::default() }]);
    let (on_by, on_gradient) = (gpu.buffer(&[still]), gpu.buffer(&vec![0.0_f32; LENGTH]));
    for (split, moments) in
        [(false, Moments::F32), (false, Moments::Bf16), (true, Moments::F32), (true, Moments::Bf16)]
    {
        let largest = f32::from_bits(0x7F7F_7FFF);
        let moment = if moments == Moments::Bf16 { largest } else { f32::MAX };
        for (at, which) in
            [0, 1, 4095, 4096, 8191, LENGTH - 1].into_iter().flat_map(|at| [(at, 0), (at, 1), (at, 2)])
        {
            for value in [largest, -largest, largest.next_up(), f32::NEG_INFINITY, f32::NAN] {
                // Second moments have a root.
                if which == 2 && value < 0.0 {
                    continue;
                }
                // The roots are 2, so that no update is infinite.
                let mut state = [vec![0.5_f32; LENGTH], vec![0.5; LENGTH], vec![4.0; LENGTH]];
                state[which][at] = value;
                let (high, low): (Vec<u16>, Vec<i16>) = state[0].iter().copied().map(split_master).unzip();
                let on_master: Buffer<u8> = match split {
                    true => gpu.buffer(bytemuck::cast_slice(&high)),
                    false => gpu.buffer(bytemuck::cast_slice(&state[0])),
                };
                let (on_remainder, on_word) = (gpu.buffer(&low), gpu.buffer(&[0_u32]));
                let [on_m, on_v] = [&state[1], &state[2]].map(|values| gpu.buffer(&stored(values, moments)));
                let operand = AdamOperand {
                    master: match split {
                        true => MasterState::Split {
                            shard: on_master.address(),
                            remainder: on_remainder.address(),
                        },
                        false => MasterState::Whole(on_master.address()),
                    },
                    exp_avg: on_m.address(),
                    exp_avg_sq: on_v.address(),
                    main_grad: on_gradient.address(),
                    hyperparameters: on_by.address(),
                    elements: LENGTH,
                };
                let bounds = Bounds { master: largest, moment, diverged: on_word.address() };
                gpu.run(gpu.kernels.adam(&settings, moments, &[operand], on_vote.address(), bounds));
                let bound = if which == 0 { largest } else { moment };
                let read = match (which, moments) {
                    (1 | 2, Moments::Bf16) => bf16::from_f32(value).to_f32(),
                    _ => value,
                };
                let goes_on = read.abs() <= bound;
                let what = format!("{value} at {at} of state {which}, split {split}, {moments:?}");
                assert_eq!(on_word.read(), [u32::from(!goes_on)], "{what}");
            }
        }
    }
}

#[test]
fn every_mode_and_every_kind_of_state_gives_the_bits_of_the_formula() {
    let Some(gpu) = Gpu::open("Adam") else { return };
    for mode in [AdamMode::AdamW, AdamMode::Adam] {
        for split in [false, true] {
            for moments in [Moments::F32, Moments::Bf16] {
                for (bias_correction, step) in [(true, 1), (true, 1000), (false, 3)] {
                    check(
                        &gpu,
                        &OptimizerSettings { mode, bias_correction, ..SETTINGS },
                        split,
                        moments,
                        step,
                    );
                }
            }
        }
    }
}

#[test]
fn a_vote_that_skips_leaves_the_state_as_it_is() {
    let Some(gpu) = Gpu::open("Adam with a vote that skips") else { return };
    let state = state(&gpu, 5000, false, Moments::F32, false);
    let before = (state.on_master.read(), state.on_moments[0].read(), state.on_moments[1].read());
    let on_vote =
        gpu.buffer(&[Vote { verdict: Vote::CLOSURE, clip: 1.0, unscale: 1.0, step: 1, ..Vote::default() }]);
    let operands = [operand(&state, false)];
    gpu.run(gpu.kernels.adam(&SETTINGS, Moments::F32, &operands, on_vote.address(), ANY));
    assert_eq!(before, (state.on_master.read(), state.on_moments[0].read(), state.on_moments[1].read()));
}

/// Conformance I1: within the tolerance of the specification; its reference rounds op by op, as we do.
#[test]
fn i1_golden_steps_are_within_tolerance() {
    let Some(gpu) = Gpu::open("golden Adam") else { return };
    for case in GoldenFile::open("adam").cases() {
        let number =
            |key: &str| case.entry[key].as_f64().unwrap_or_else(|| panic!("{}: {key}", case.name)) as f32;
        let settings = OptimizerSettings {
            mode: if case.entry["mode"].as_str() == Some("adamw") { AdamMode::AdamW } else { AdamMode::Adam },
            epsilon: number("eps"),
            bias_correction: case.entry["bias"].as_bool().unwrap(),
            max_norm: 0.0,
        };
        let master = case.f32s("master_0");
        let zeros = vec![0.0_f32; master.len()];
        let (on_master, on_m, on_v) = (gpu.buffer(&master), gpu.buffer(&zeros), gpu.buffer(&zeros));
        let on_by = gpu.buffer(&[Hyperparameters {
            learning_rate: number("lr"),
            weight_decay: number("wd"),
            beta1: number("b1"),
            beta2: number("b2"),
        }]);
        for step in 1..=case.dimension("steps") {
            let gradient = case.bytes(&format!("grad_{step}"));
            let gradient: Vec<f32> = if gradient.len() == master.len() * 2 {
                gradient.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect()
            } else {
                case.f32s(&format!("grad_{step}"))
            };
            let on_gradient = gpu.buffer(&gradient);
            let on_vote =
                gpu.buffer(&[Vote { clip: 1.0, unscale: 1.0, step: step as u32, ..Vote::default() }]);
            let operand = AdamOperand {
                master: MasterState::Whole(on_master.address()),
                exp_avg: on_m.address(),
                exp_avg_sq: on_v.address(),
                main_grad: on_gradient.address(),
                hyperparameters: on_by.address(),
                elements: master.len(),
            };
            gpu.run(gpu.kernels.adam(&settings, Moments::F32, &[operand], on_vote.address(), ANY));
            for (found, field) in
                [(on_m.read(), "exp_avg"), (on_v.read(), "exp_avg_sq"), (on_master.read(), "master")]
            {
                let expected = case.f32s(&format!("{field}_{step}"));
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let allowed = match field {
                        "master" => 1e-7 + 1e-6 * expected.abs(),
                        _ => 1e-30 + 2e-6 * expected.abs(),
                    };
                    let apart = (found - expected).abs();
                    assert!(
                        apart <= allowed,
                        "{} {field}_{step} element {at}: {found:e}, {expected:e}",
                        case.name
                    );
                }
            }
        }
    }
}
