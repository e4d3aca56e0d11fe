//! Every piece on the GPU against the same piece on the CPU, on random operands.
//!
//! Law: outputs and scratch begin as NaN, so what a piece forgets to write, or reads of another call, shows.
//! Both sides get the same operands, so errors do not add up from piece to piece. Without a GPU each test
//! says on stderr that it was skipped, and why.

use bytemuck::Pod;

use super::cuda::compile::{Architecture, compile};
use super::cuda::device::{Buffer, Device};
use super::cuda::kernel::{Kernel, SOURCE};
use super::cuda::scratch::Scratch;
use super::cuda::span::{Matrix, Span, SpanMut};
use super::cuda::{Failure, attention, embedding, head, kernels, mlp};
use super::turn::{Turn, skip, turn};
use crate::init::Stream;
use crate::model::{self, Config, VOCABULARY};

/// Sizes that fill no block and no warp evenly, and the sizes of the example with a smaller batch.
fn configs() -> [Config; 2] {
    let odd = Config { width: 48, layers: 1, heads: 3, hidden: 80, sequence: 37, batch: 3 };
    let usual = Config { batch: 2, ..Config::default() };
    [odd, usual].map(|config| config.check().unwrap())
}

/// The first GPU, if there is one.
struct Gpu {
    device: Device,
    _alone: Turn,
}

impl std::ops::Deref for Gpu {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

fn device(test: &str) -> Option<Gpu> {
    let (found, turn) = turn(test)?;
    assert!(found.count() > 0);
    let code = kernels(&[0]).unwrap();
    Some(Gpu { device: Device::open(0, &code[0]).unwrap(), _alone: turn })
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut stream = Stream::keyed(seed, []);
    (0..len).map(|_| stream.symmetric()).collect()
}

fn transposed(matrix: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| matrix[i % rows * cols + i / rows]).collect()
}

fn nan(device: &Device, len: usize) -> Buffer<f32> {
    device.upload(&vec![f32::NAN; len]).unwrap()
}

/// Scratch in which another call left something: nothing of it may reach a result.
fn scratch(device: &Device, config: &Config) -> Scratch {
    let mut scratch = Scratch::new(device, config).unwrap();
    for left in [
        &mut scratch.normalized,
        &mut scratch.gradient,
        &mut scratch.inverses,
        &mut scratch.activated,
        &mut scratch.hidden_gradient,
        &mut scratch.qkv_gradient,
        &mut scratch.probabilities,
        &mut scratch.score_gradient,
        &mut scratch.logits,
        &mut scratch.losses,
    ] {
        *left = nan(device, left.download().unwrap().len());
    }
    scratch
}

/// Differences stay far below what a wrong term would make: 3e-5 of an element and of the typical element.
fn agree(what: &str, gpu: &Buffer<f32>, cpu: &[f32]) {
    let gpu = gpu.download().unwrap();
    assert_eq!(gpu.len(), cpu.len(), "{what}");
    let squares: f64 = cpu.iter().map(|x| f64::from(*x).powi(2)).sum();
    let typical = (squares / cpu.len() as f64).sqrt();
    assert!(typical > 0.0, "{what}: zeros prove nothing");
    for (index, (&gpu, &cpu)) in gpu.iter().zip(cpu).enumerate() {
        let (gpu, cpu) = (f64::from(gpu), f64::from(cpu));
        let bound = 3e-5 * (cpu.abs() + typical);
        assert!((gpu - cpu).abs() <= bound, "{what}[{index}]: {gpu} on the GPU, {cpu} on the CPU");
    }
}

/// An operand on both sides.
struct Both<T> {
    cpu: Vec<T>,
    gpu: Buffer<T>,
}

impl<T: Pod> Both<T> {
    fn of(device: &Device, cpu: Vec<T>) -> Self {
        let gpu = device.upload(&cpu).unwrap();
        Self { cpu, gpu }
    }

    fn span(&self) -> Span<'_, T> {
        self.gpu.read()
    }

    fn span_mut(&mut self) -> SpanMut<'_, T> {
        self.gpu.write()
    }
}

impl Both<f32> {
    fn random(device: &Device, len: usize, seed: u64) -> Self {
        Self::of(device, random(len, seed))
    }

    /// A `rows × cols` matrix that keeps the variance of what it multiplies, as the model's own begin: with larger
    /// ones attention looks at single tokens, and its gradient is a difference of nearly equal numbers.
    fn keeping(device: &Device, rows: usize, cols: usize, seed: u64) -> Self {
        let deviation = (3.0 / cols as f32).sqrt();
        Self::of(device, random(rows * cols, seed).into_iter().map(|x| deviation * x).collect())
    }

    fn nan(device: &Device, len: usize) -> Self {
        Self::of(device, vec![f32::NAN; len])
    }

    fn agree(&self, what: &str) {
        agree(what, &self.gpu, &self.cpu);
    }
}

#[test]
fn attention_agrees_with_the_cpu() {
    let Some(device) = device("attention") else { return };
    for config in configs() {
        let (tokens, width) = (config.tokens(), config.width);
        let random = |len, seed| Both::random(&device, len, seed);
        let keeping = |rows, cols, seed| Both::keeping(&device, rows, cols, seed);
        let nan = |len| Both::nan(&device, len);
        let x = random(tokens * width, 1);
        let (gain, qkv, output) = (random(width, 2), keeping(3 * width, width, 3), keeping(width, width, 4));
        let (mut rotated, mut logsumexp, mut mixed, mut y) =
            (nan(tokens * 3 * width), nan(tokens * config.heads), nan(tokens * width), nan(tokens * width));
        crate::attention::forward(
            &config,
            &x.cpu,
            crate::attention::Weights { gain: &gain.cpu[..], qkv: &qkv.cpu, output: &output.cpu },
            crate::attention::Kept {
                rotated: &mut rotated.cpu[..],
                logsumexp: &mut logsumexp.cpu,
                mixed: &mut mixed.cpu,
            },
            &mut y.cpu,
            &mut model::Scratch::new(&config),
        );
        attention::forward(
            &device,
            &config,
            x.span(),
            crate::attention::Weights { gain: gain.span(), qkv: qkv.span(), output: output.span() },
            crate::attention::Kept {
                rotated: rotated.span_mut(),
                logsumexp: logsumexp.span_mut(),
                mixed: mixed.span_mut(),
            },
            y.span_mut(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        for (what, both) in [("rotated", &rotated), ("logsumexp", &logsumexp), ("mixed", &mixed), ("y", &y)] {
            both.agree(what);
        }

        // Backward from the CPU's activations on both sides.
        let kept = [rotated, logsumexp, mixed].map(|both| Both::of(&device, both.cpu));
        let [rotated, logsumexp, mixed] = &kept;
        let qkv = Both::of(&device, transposed(&qkv.cpu, 3 * width, width));
        let output = Both::of(&device, transposed(&output.cpu, width, width));
        let mut residual = random(tokens * width, 5);
        let (mut gain_gradient, mut qkv_gradient, mut output_gradient) =
            (nan(width), nan(3 * width * width), nan(width * width));
        crate::attention::backward(
            &config,
            &x.cpu,
            crate::attention::Weights { gain: &gain.cpu[..], qkv: &qkv.cpu, output: &output.cpu },
            crate::attention::Kept {
                rotated: &rotated.cpu[..],
                logsumexp: &logsumexp.cpu,
                mixed: &mixed.cpu,
            },
            crate::attention::Weights {
                gain: Some(&mut gain_gradient.cpu[..]),
                qkv: Some(&mut qkv_gradient.cpu),
                output: Some(&mut output_gradient.cpu),
            },
            &mut residual.cpu,
            &mut model::Scratch::new(&config),
        );
        attention::backward(
            &device,
            &config,
            x.span(),
            crate::attention::Weights { gain: gain.span(), qkv: qkv.span(), output: output.span() },
            crate::attention::Kept {
                rotated: rotated.span(),
                logsumexp: logsumexp.span(),
                mixed: mixed.span(),
            },
            crate::attention::Weights {
                gain: Some(gain_gradient.span_mut()),
                qkv: Some(qkv_gradient.span_mut()),
                output: Some(output_gradient.span_mut()),
            },
            residual.span_mut(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        residual.agree("gradient of x");
        gain_gradient.agree("gradient of the gain");
        qkv_gradient.agree("gradient of qkv");
        output_gradient.agree("gradient of output");
    }
}

#[test]
fn the_mlp_agrees_with_the_cpu() {
    let Some(device) = device("mlp") else { return };
    for config in configs() {
        let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
        let random = |len, seed| Both::random(&device, len, seed);
        let keeping = |rows, cols, seed| Both::keeping(&device, rows, cols, seed);
        let nan = |len| Both::nan(&device, len);
        let x = random(tokens * width, 1);
        let (gain, up, down) = (random(width, 2), keeping(features, width, 3), keeping(width, features, 4));
        let (mut hidden, mut y) = (nan(tokens * features), nan(tokens * width));
        crate::mlp::forward(
            &config,
            &x.cpu,
            crate::mlp::Weights { gain: &gain.cpu[..], up: &up.cpu, down: &down.cpu },
            &mut hidden.cpu,
            &mut y.cpu,
            &mut model::Scratch::new(&config),
        );
        mlp::forward(
            &device,
            &config,
            x.span(),
            crate::mlp::Weights { gain: gain.span(), up: up.span(), down: down.span() },
            hidden.span_mut(),
            y.span_mut(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        hidden.agree("hidden");
        y.agree("y");

        let hidden = Both::of(&device, hidden.cpu);
        let up = Both::of(&device, transposed(&up.cpu, features, width));
        let down = Both::of(&device, transposed(&down.cpu, width, features));
        let mut residual = random(tokens * width, 5);
        let (mut gain_gradient, mut up_gradient, mut down_gradient) =
            (nan(width), nan(features * width), nan(width * features));
        crate::mlp::backward(
            &config,
            &x.cpu,
            crate::mlp::Weights { gain: &gain.cpu[..], up: &up.cpu, down: &down.cpu },
            &hidden.cpu,
            crate::mlp::Weights {
                gain: Some(&mut gain_gradient.cpu[..]),
                up: Some(&mut up_gradient.cpu),
                down: Some(&mut down_gradient.cpu),
            },
            &mut residual.cpu,
            &mut model::Scratch::new(&config),
        );
        mlp::backward(
            &device,
            &config,
            x.span(),
            crate::mlp::Weights { gain: gain.span(), up: up.span(), down: down.span() },
            hidden.span(),
            crate::mlp::Weights {
                gain: Some(gain_gradient.span_mut()),
                up: Some(up_gradient.span_mut()),
                down: Some(down_gradient.span_mut()),
            },
            residual.span_mut(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        residual.agree("gradient of x");
        gain_gradient.agree("gradient of the gain");
        up_gradient.agree("gradient of up");
        down_gradient.agree("gradient of down");
    }
}

#[test]
fn the_head_agrees_with_the_cpu() {
    let Some(device) = device("head") else { return };
    for config in configs() {
        let (tokens, width) = (config.tokens(), config.width);
        let random = |len, seed| Both::random(&device, len, seed);
        let nan = |len| Both::nan(&device, len);
        let (x, gain, table) = (random(tokens * width, 1), random(width, 2), random(VOCABULARY * width, 3));
        let targets = Both::of(&device, (0..tokens).map(|i| (i * 37 % 256) as u8).collect());
        let (mut loss, mut residual) = (nan(1), nan(tokens * width));
        let (mut gain_gradient, mut table_gradient) = (nan(width), nan(VOCABULARY * width));
        loss.cpu[0] = crate::head::forward_backward(
            &config,
            &x.cpu,
            crate::head::Weights { gain: &gain.cpu[..], table: &table.cpu },
            &targets.cpu,
            crate::head::Weights {
                gain: Some(&mut gain_gradient.cpu[..]),
                table: Some(&mut table_gradient.cpu),
            },
            &mut residual.cpu,
            &mut model::Scratch::new(&config),
        );
        let weights = crate::head::Weights { gain: gain.span(), table: table.span() };
        head::forward_backward(
            &device,
            &config,
            x.span(),
            weights,
            targets.span(),
            crate::head::Weights {
                gain: Some(gain_gradient.span_mut()),
                table: Some(table_gradient.span_mut()),
            },
            loss.span_mut(),
            residual.span_mut(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        loss.agree("loss");
        residual.agree("gradient of x");
        gain_gradient.agree("gradient of the gain");
        table_gradient.agree("gradient of the table");

        let mut evaluated = nan(1);
        let scratch = &mut scratch(&device, &config);
        head::evaluate(&device, &config, x.span(), weights, targets.span(), evaluated.span_mut(), scratch)
            .unwrap();
        assert_eq!(evaluated.gpu.download().unwrap(), loss.gpu.download().unwrap());
    }
}

#[test]
fn the_embedding_gives_the_bits_of_the_cpu() {
    let Some(device) = device("embedding") else { return };
    for config in configs() {
        let shape @ (tokens, width) = (config.tokens(), config.width);
        // Few different tokens, so that rows are summed; most rows stay zero.
        let bytes = Both::of(&device, (0..tokens).map(|i| (i * i % 19 * 13) as u8).collect());
        let (table, residual) =
            (Both::random(&device, VOCABULARY * width, 1), Both::random(&device, tokens * width, 2));
        let (mut x, mut gradient) =
            (Both::nan(&device, tokens * width), Both::nan(&device, VOCABULARY * width));
        crate::embedding::forward(width, &bytes.cpu, &table.cpu, &mut x.cpu);
        embedding::forward(&device, shape, bytes.span(), table.span(), x.span_mut()).unwrap();
        assert_eq!(x.gpu.download().unwrap(), x.cpu);
        crate::embedding::backward(width, &bytes.cpu, &residual.cpu, &mut gradient.cpu);
        embedding::backward(&device, shape, bytes.span(), residual.span(), gradient.span_mut()).unwrap();
        assert_eq!(gradient.gpu.download().unwrap(), gradient.cpu);
    }
}

#[test]
fn every_layout_of_a_product_agrees_with_the_cpu() {
    use crate::product::{View, ViewMut};
    let Some(device) = device("products") else { return };
    let (rows, inner, cols) = (19, 33, 21);
    for layout in 0..4 {
        let (left, right) = (Both::random(&device, rows * inner, 1), Both::random(&device, inner * cols, 2));
        let (lhs, lhs_gpu) = match layout & 1 {
            0 => (View::dense(&left.cpu, rows, inner), Matrix::dense(left.span(), rows, inner)),
            _ => (
                View::dense(&left.cpu, inner, rows).transposed(),
                Matrix::dense(left.span(), inner, rows).transposed(),
            ),
        };
        let (rhs, rhs_gpu) = match layout & 2 {
            0 => (View::dense(&right.cpu, inner, cols), Matrix::dense(right.span(), inner, cols)),
            _ => (
                View::dense(&right.cpu, cols, inner).transposed(),
                Matrix::dense(right.span(), cols, inner).transposed(),
            ),
        };
        let mut target = Both::nan(&device, rows * cols);
        ViewMut::dense(&mut target.cpu, rows, cols).write(1.0, lhs, rhs);
        device.multiply(target.span_mut(), false, lhs_gpu, rhs_gpu).unwrap();
        target.agree("written");
        ViewMut::dense(&mut target.cpu, rows, cols).add(lhs, rhs);
        device.multiply(target.span_mut(), true, lhs_gpu, rhs_gpu).unwrap();
        target.agree("added");
    }
}

#[test]
fn a_second_run_gives_the_same_bits() {
    let Some(device) = device("repetition") else { return };
    let config = Config::default().check().unwrap();
    let (tokens, width) = (config.tokens(), config.width);
    let (x, gain, table) = (
        Both::random(&device, tokens * width, 1),
        Both::random(&device, width, 2),
        Both::random(&device, VOCABULARY * width, 3),
    );
    let targets = device.upload(&(0..tokens).map(|i| (i * 37 % 256) as u8).collect::<Vec<_>>()).unwrap();
    let run = || {
        let mut results = [1, tokens * width, width, VOCABULARY * width].map(|len| nan(&device, len));
        let [loss, residual, gain_gradient, table_gradient] = &mut results;
        head::forward_backward(
            &device,
            &config,
            x.span(),
            crate::head::Weights { gain: gain.span(), table: table.span() },
            targets.read(),
            crate::head::Weights { gain: Some(gain_gradient.write()), table: Some(table_gradient.write()) },
            loss.write(),
            residual.write(),
            &mut scratch(&device, &config),
        )
        .unwrap();
        results.map(|buffer| buffer.download().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

#[test]
fn an_operand_of_another_length_is_refused_before_the_launch() {
    let Some(device) = device("lengths") else { return };
    let (x, gain) = (nan(&device, 4 * 16), nan(&device, 15));
    let mut out = nan(&device, 4 * 16);
    let refusal =
        super::cuda::ops::normalize(&device, (4, 16), x.read(), gain.read(), out.write()).unwrap_err();
    assert_eq!(refusal, Failure::Length { what: "normalize", wanted: 16, given: 15 });
    let refusal = device.rows(Kernel::AttentionForward, 1).shared(1 << 20).run().unwrap_err();
    assert!(matches!(refusal, Failure::Size { what: "attention_forward", .. }), "{refusal}");
}

/// Compiles a source for every architecture the README names, and looks for its kernels in what comes out.
pub(crate) fn compiles_everywhere(what: &str, source: &str, kernels: &[&str]) {
    for (major, minor) in [(8, 0), (9, 0), (10, 0)] {
        let architecture = Architecture { major, minor };
        match compile(source, architecture) {
            Ok(code) => {
                assert_eq!(&code.bytes()[..4], b"\x7fELF", "{architecture}");
                for name in kernels {
                    let held = code.bytes().windows(name.len()).any(|bytes| bytes == name.as_bytes());
                    assert!(held, "{architecture}: no kernel is named {name}");
                }
            }
            Err(failure @ Failure::Missing { .. }) => {
                return skip(&format!("compilation of {what}"), &failure);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
    let refusal = compile(source, Architecture { major: 1, minor: 0 }).map(|_| ()).unwrap_err();
    assert!(refusal.to_string().contains("sm_10"), "{refusal}");
}

#[test]
fn the_kernels_compile_for_every_architecture_the_readme_names() {
    let names: Vec<&str> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
    compiles_everywhere("the main job's kernels", SOURCE, &names);
}
