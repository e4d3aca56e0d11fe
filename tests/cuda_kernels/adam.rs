//! Adam against the CPU's order of operations, on state of every kind, and against the golden file.

use half::bf16;
use warpweft::backend::cuda::kernels::{AdamOperand, LearningRate, MasterState};
use warpweft::config::{AdamMode, Moments};
use warpweft::format::{join_master, split_master};
use warpweft::layout::OptimizerSettings;
use warpweft::op::Vote;

use crate::golden_file::{GoldenFile, assert_bytes};
use crate::gpu::{Buffer, Gpu};
use crate::values::{Kind, values};

const SETTINGS: OptimizerSettings = OptimizerSettings {
    mode: AdamMode::AdamW,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
    bias_correction: true,
    max_norm: 0.0,
};

/// The learning rate of a step as it is.
fn rate(on_lr: &Buffer<f32>) -> LearningRate {
    LearningRate { at: on_lr.address(), scale: 1.0 }
}

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
    lr: f32,
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
    let g = if decoupled { clipped } else { clipped + s.weight_decay * p };
    let m = s.beta1 * m + (1.0 - s.beta1) * g;
    let v = s.beta2 * v + ((1.0 - s.beta2) * g) * g;
    let u = (m / correction(s.beta1)) / ((v / correction(s.beta2)).sqrt() + s.epsilon);
    let u = if decoupled { u + s.weight_decay * p } else { u };
    [p - lr * u, m, v]
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
    State { master, moments: [m, v], gradient, on_master, on_remainder, on_moments, on_gradient }
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
        elements: state.master.len(),
    }
}

fn check(gpu: &Gpu, settings: &OptimizerSettings, split: bool, moments: Moments, step: u32) {
    let states: Vec<_> =
        LENGTHS.iter().enumerate().map(|(at, n)| state(gpu, *n, split, moments, at % 2 == 1)).collect();
    let (clip, unscale, lr) = (0.75_f32, 1.0 / 1024.0, 3e-3_f32);
    let on_vote = gpu.buffer(&[Vote { clip, unscale, step, ..Vote::default() }]);
    let on_lr = gpu.buffer(&[lr]);
    let operands: Vec<_> = states.iter().map(|state| operand(state, split)).collect();
    let rate = LearningRate { at: on_lr.address(), scale: 0.3 };
    gpu.run(gpu.kernels.adam(settings, moments, &operands, on_vote.address(), rate));
    let lr = lr * rate.scale;
    for state in &states {
        let what =
            format!("{settings:?} split {split} {moments:?} step {step}, {} elements", state.master.len());
        let mut expected: [Vec<f32>; 3] = Default::default();
        for at in 0..state.master.len() {
            let [m, v] = [state.moments[0][at], state.moments[1][at]];
            let new = element(settings, step, clip * unscale, lr, state.master[at], m, v, state.gradient[at]);
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
    let on_lr = gpu.buffer(&[1.0_f32]);
    let operands = [operand(&state, false)];
    gpu.run(gpu.kernels.adam(&SETTINGS, Moments::F32, &operands, on_vote.address(), rate(&on_lr)));
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
            beta1: number("b1"),
            beta2: number("b2"),
            epsilon: number("eps"),
            weight_decay: number("wd"),
            bias_correction: case.entry["bias"].as_bool().unwrap(),
            max_norm: 0.0,
        };
        let master = case.f32s("master_0");
        let zeros = vec![0.0_f32; master.len()];
        let (on_master, on_m, on_v) = (gpu.buffer(&master), gpu.buffer(&zeros), gpu.buffer(&zeros));
        let on_lr = gpu.buffer(&[number("lr")]);
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
                elements: master.len(),
            };
            gpu.run(gpu.kernels.adam(&settings, Moments::F32, &[operand], on_vote.address(), rate(&on_lr)));
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
