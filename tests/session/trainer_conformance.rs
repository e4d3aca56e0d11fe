//! Conformance cases of whole trainers: C7 and H8.

use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{Directions, ElementType, Format, Orientation, Shape, Via, quantize};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::config::Config;
use warpweft_session::session::Session;
use warpweft_session::session::initial::MasterRows;

const RANKS: u32 = 2;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(std::time::Duration::from_secs(100), future).await.expect("it ended in time")
    })
}

/// Values without a pattern, between −1 and 1.
fn noise(at: usize, seed: u64) -> f32 {
    let mixed = (at as u64 ^ seed << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn initial(rows: MasterRows<'_>, values: &mut [f32]) {
    let seed = u64::from(rows.weight.bytes().next_back().unwrap());
    for (at, value) in values.iter_mut().enumerate() {
        *value = noise(rows.first_element() + at, seed) * 0.1;
    }
}

/// AdamW, operation by operation as the specification writes it.
struct Reference {
    master: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
}

impl Reference {
    fn new(name: &str, elements: usize) -> Self {
        let mut master = vec![0.0; elements];
        initial(MasterRows::from_the_first(name, elements), &mut master);
        Self { exp_avg: vec![0.0; elements], exp_avg_sq: vec![0.0; elements], master }
    }

    fn update(&mut self, step: i32, rate: f32, gradient: impl Fn(usize) -> f32) {
        let (beta1, beta2) = (0.9_f32, 0.999_f32);
        let corrected = |beta: f32| (1.0 - f64::from(beta).powi(step)) as f32;
        let (c1, c2) = (corrected(beta1), corrected(beta2));
        for at in 0..self.master.len() {
            let g = gradient(at);
            let m = beta1 * self.exp_avg[at] + (1.0 - beta1) * g;
            let v = beta2 * self.exp_avg_sq[at] + ((1.0 - beta2) * g) * g;
            self.master[at] -= rate * ((m / c1) / ((v / c2).sqrt() + 1e-8));
            (self.exp_avg[at], self.exp_avg_sq[at]) = (m, v);
        }
    }
}

/// Conformance C7: bf16 weights of these sizes, an odd number of elements in all, on two ranks. Every rank pulls
/// them to a place of its own. After 100 steps masters and weights are those of a trainer that shards nothing.
#[test]
fn c7_bf16_weights_of_an_odd_total_equal_those_of_an_unsharded_trainer_after_a_hundred_steps() {
    const RATE: f32 = 3e-3;
    let shapes = [Shape::new(256, 256), Shape::new(384, 512), Shape::new(131_071, 1)];
    assert_eq!(shapes.map(Shape::elements), [65_536, 196_608, 131_071]);
    let target = |rank: usize, at: usize| noise(at, 77 + rank as u64);
    block_on(async {
        let mut model = Model::builder();
        let declare = |(number, shape): (usize, &Shape)| -> Result<_, _> {
            model.sharded(&format!("w{number}"), shape.rows, shape.cols, Format::Bf16)
        };
        let weights: Vec<_> = shapes.iter().enumerate().map(declare).collect::<Result<_, _>>().unwrap();
        let mut program = StepProgram::builder("train", &model.build());
        let mut call = program.call("pull", Phase::Backward);
        for weight in &weights {
            call = call.uses(*weight, Orientation::Rowwise, Form::Dense).gradient(*weight);
        }
        call.add().unwrap();
        let used = weights.clone();
        let pull = move |rank: RankId| {
            let used = used.clone();
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                for weight in &used {
                    let values = context.dense(*weight, Orientation::Rowwise)?;
                    let mut gradient = context.gradient(*weight)?;
                    for (at, (gradient, value)) in gradient.iter_mut().zip(values.iter()).enumerate() {
                        *gradient = value - target(rank.index(), at);
                    }
                }
                Ok(())
            }
        };
        let mut config = Config { check: true, ..Config::default() };
        config.optimizer.lr = f64::from(RATE);
        let mut session = Session::builder(config, pull)
            .program(program.build_training().unwrap())
            .initialize(initial)
            .start_cpu(RANKS)
            .await
            .unwrap();
        for _ in 0..100 {
            session.step("train").await.unwrap();
        }
        let checkpoint = session.export().await.unwrap();
        assert_eq!(checkpoint.optimizer_step, 100);
        for (state, shape) in checkpoint.weights.iter().zip(shapes) {
            let mut reference = Reference::new(&state.name, shape.elements());
            let start = reference.master.clone();
            for step in 1..=100 {
                let weights: Vec<f32> =
                    reference.master.iter().map(|value| half::bf16::from_f32(*value).to_f32()).collect();
                reference.update(step, RATE, |at| {
                    let of = |rank| weights[at] - target(rank, at);
                    (of(0) + of(1)) * 0.5
                });
            }
            assert!(state.master == reference.master, "the master of {}", state.name);
            assert_ne!(state.master, start);
            let cast =
                quantize(Format::Bf16, Directions::Rowwise, Via::Bf16, shape, &reference.master).unwrap();
            assert!(state.planes[0].planes[0] == cast.rowwise.unwrap().data, "the bytes of {}", state.name);
        }
    });
}

/// Adam by its paper, in f64.
fn textbook(start: f32, rate: f32, gradients: impl Iterator<Item = f32>) -> f64 {
    let [b1, b2, epsilon] = [0.9_f32, 0.999, 1e-8].map(f64::from);
    let (mut p, mut m, mut v, mut t) = (f64::from(start), 0.0, 0.0, 0);
    for gradient in gradients.map(f64::from) {
        t += 1;
        m = b1 * m + (1.0 - b1) * gradient;
        v = b2 * v + (1.0 - b2) * gradient * gradient;
        p -= f64::from(rate) * (m / (1.0 - b1.powi(t))) / ((v / (1.0 - b2.powi(t))).sqrt() + epsilon);
    }
    p
}

/// Conformance H8: a quantized linear layer of 256×256. Its masters follow Adam as the paper has it, fed with
/// the gradients that the closures really wrote; the weight stays quantized from them; the loss falls.
#[test]
fn h8_masters_of_a_quantized_linear_layer_follow_the_textbook_and_the_loss_falls() {
    const SIZE: usize = 256;
    const STEPS: u32 = 12;
    const RATE: f32 = 2e-3;
    let shape = Shape::new(SIZE, SIZE);
    for format in [Format::Mxfp8, Format::FP8_BLOCK128_POW2, Format::FP8_BLOCK128_F32SCALE] {
        block_on(async {
            let mut model = Model::builder();
            let weight = model.sharded("linear", SIZE, SIZE, format).unwrap();
            let mut program = StepProgram::builder("train", &model.build());
            let loss = program.output("loss", 1, ElementType::F32).unwrap();
            let call = program.call("fit", Phase::Backward);
            let call = call.uses(weight, Orientation::Rowwise, Form::Dense).gradient(weight).writes(loss);
            call.add().unwrap();
            let written = Arc::new(Mutex::new(vec![Vec::new(); RANKS as usize]));
            let kept = Arc::clone(&written);
            let fit = move |rank: RankId| {
                let kept = Arc::clone(&kept);
                move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                    let w = context.dense(weight, Orientation::Rowwise)?;
                    let mut gradient = context.gradient(weight)?;
                    let x: Vec<f32> = (0..SIZE).map(|at| noise(at, 5 + u64::from(rank.number()))).collect();
                    let mut squares = 0.0;
                    for row in 0..SIZE {
                        let y: f32 = w[row * SIZE..(row + 1) * SIZE].iter().zip(&x).map(|(w, x)| w * x).sum();
                        let error = y - 0.5 * x[row];
                        squares += error * error;
                        for (col, x) in x.iter().enumerate() {
                            gradient[row * SIZE + col] = 2.0 * error * x;
                        }
                    }
                    context.write::<f32>(loss)?[0] = squares;
                    kept.lock().unwrap()[rank.index()].push(gradient.to_vec());
                    Ok(())
                }
            };
            let mut config = Config { check: true, ..Config::default() };
            config.optimizer.lr = f64::from(RATE);
            let mut session = Session::builder(config, fit)
                .program(program.build_training().unwrap())
                .initialize(initial)
                .start_cpu(RANKS)
                .await
                .unwrap();
            let mut losses = Vec::new();
            for _ in 0..STEPS {
                losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap());
            }
            assert!(losses[STEPS as usize - 1] < losses[0] * 0.5, "{format}: {losses:?}");

            let state = session.export().await.unwrap().weights.remove(0);
            let gradients = written.lock().unwrap();
            let start = Reference::new("linear", shape.elements()).master;
            for (at, found) in state.master.iter().enumerate() {
                let mean = |step: usize| (gradients[0][step][at] + gradients[1][step][at]) * 0.5;
                let expected = textbook(start[at], RATE, (0..STEPS as usize).map(mean));
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= 1e-5 + 1.3e-6 * expected.abs(), "{format}, element {at}: {error:e}");
            }
            let whole = quantize(format, Directions::Both, Via::Bf16, shape, &state.master).unwrap();
            assert!(!state.planes.is_empty());
            for stored in &state.planes {
                let expected = match stored.orientation {
                    Orientation::Rowwise => whole.rowwise.as_ref().unwrap(),
                    Orientation::Columnwise => whole.columnwise.as_ref().unwrap(),
                };
                assert!(stored.planes[0] == expected.data && stored.planes[1] == expected.scale, "{format}");
            }
        });
    }
}
