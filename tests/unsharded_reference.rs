//! The whole machine against the plainest trainer there is: one process, whole weights, no schedule.
//!
//! Conformance C4, C6: a trainer whose weights are sharded, quantized from shards and gathered gives
//! exactly the losses of one that quantizes whole weights in place, at every step and for every
//! format. The reference below shares nothing with planner, actors and backend but the quantizer's
//! whole-tensor entry point, which has golden vectors of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod trainer;

use trainer::{SIZE, Trainer, initial, losses, within_a_minute};
use warpweft::config::Config;
use warpweft::format::{Directions, Format, Orientation, Planes, Shape, Via, dequantize, quantize};

const RANKS: u32 = 3;
const LAYERS: usize = 2;
const STEPS: u32 = 12;
const RATE: f32 = 3e-3;

/// One parameter with its AdamW state.
struct Parameter {
    master: Vec<f32>,
    exp_avg: Vec<f32>,
    exp_avg_sq: Vec<f32>,
}

impl Parameter {
    fn new(name: &str, cols: usize, elements: usize) -> Self {
        let mut master = vec![0.0; elements];
        initial(name, 0, cols, &mut master);
        Self { exp_avg: vec![0.0; elements], exp_avg_sq: vec![0.0; elements], master }
    }

    /// AdamW, operation by operation as the specification writes it.
    fn update(&mut self, gradient: &[f32], step: i32) {
        let (beta1, beta2, epsilon) = (0.9f32, 0.999f32, 1e-8f32);
        let corrected = |beta: f32| (1.0 - f64::from(beta).powi(step)) as f32;
        let (c1, c2) = (corrected(beta1), corrected(beta2));
        for (at, gradient) in gradient.iter().enumerate() {
            let m = beta1 * self.exp_avg[at] + (1.0 - beta1) * gradient;
            let v = beta2 * self.exp_avg_sq[at] + ((1.0 - beta2) * gradient) * gradient;
            let update = (m / c1) / ((v / c2).sqrt() + epsilon);
            self.master[at] -= RATE * update;
            (self.exp_avg[at], self.exp_avg_sq[at]) = (m, v);
        }
    }
}

/// The values a forward pass sees: the weight as it would be stored, and back.
fn as_stored(format: Format, master: &[f32]) -> Vec<f32> {
    let shape = Shape::new(SIZE, SIZE);
    let stored = quantize(format, Directions::Rowwise, Via::Bf16, shape, master).unwrap();
    let planes = stored.rowwise.as_ref().unwrap();
    let mut values = vec![0.0; SIZE * SIZE];
    let planes = Planes { data: &planes.data, scale: &planes.scale };
    dequantize(format, Orientation::Rowwise, shape, planes, stored.tensor_scale, &mut values).unwrap();
    values
}

/// The same columnwise: the transpose, in formats that quantize it by itself its own values.
fn transposed_as_stored(format: Format, master: &[f32]) -> Vec<f32> {
    let shape = Shape::new(SIZE, SIZE);
    let stored = quantize(format, Directions::Both, Via::Bf16, shape, master).unwrap();
    let planes = stored.columnwise.as_ref().unwrap();
    let mut values = vec![0.0; SIZE * SIZE];
    let planes = Planes { data: &planes.data, scale: &planes.scale };
    dequantize(format, Orientation::Columnwise, shape, planes, stored.tensor_scale, &mut values).unwrap();
    values
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Loss and gradients of one rank: per layer, then of the bias from each layer, last layer first.
fn one_rank(
    weights: &[Vec<f32>],
    transposed: &[Vec<f32>],
    bias: &[f32],
    input: &[f32],
) -> (f32, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut activations = vec![input.to_vec()];
    for weight in weights {
        let x = activations.last().unwrap();
        let y = (0..SIZE).map(|row| bias[row] + dot(&weight[row * SIZE..(row + 1) * SIZE], x)).collect();
        activations.push(y);
    }
    let errors: Vec<f32> = activations[LAYERS].iter().zip(input).map(|(y, target)| y - target).collect();
    let loss = errors.iter().map(|error| error * error).sum();
    let mut above: Vec<f32> = errors.iter().map(|error| 2.0 * error).collect();
    let (mut gradients, mut of_bias) = (vec![Vec::new(); LAYERS], Vec::new());
    for layer in (0..LAYERS).rev() {
        let x = &activations[layer];
        gradients[layer] = above.iter().flat_map(|above| x.iter().map(move |x| above * x)).collect();
        of_bias.push(above.clone());
        let columns = &transposed[layer];
        above = (0..SIZE).map(|col| dot(&columns[col * SIZE..(col + 1) * SIZE], &above)).collect();
    }
    (loss, gradients, of_bias)
}

/// The mean over ranks: summed in rank order in f32, then multiplied by the reciprocal.
fn mean<'a>(ranks: impl Iterator<Item = &'a Vec<f32>>) -> Vec<f32> {
    let mut sum: Vec<f32> = Vec::new();
    for values in ranks {
        if sum.is_empty() {
            sum.clone_from(values);
        } else {
            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
    sum.iter().map(|sum| sum * (1.0 / RANKS as f32)).collect()
}

/// A replicated gradient: each rank scales and adds its contributions, then ranks are summed.
fn replicated_mean(ranks: &[Vec<Vec<f32>>]) -> Vec<f32> {
    let scaled =
        |values: &Vec<f32>| values.iter().map(|value| value * (1.0 / RANKS as f32)).collect::<Vec<f32>>();
    let local = ranks.iter().map(|contributions| {
        contributions.iter().map(scaled).reduce(|mut sum, more| {
            sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
            sum
        })
    });
    local
        .map(Option::unwrap)
        .reduce(|mut sum, more| {
            sum.iter_mut().zip(&more).for_each(|(sum, more)| *sum += more);
            sum
        })
        .unwrap()
}

fn reference(format: Format) -> Vec<u32> {
    let mut layers: Vec<Parameter> =
        (0..LAYERS).map(|layer| Parameter::new(&format!("layer{layer}"), SIZE, SIZE * SIZE)).collect();
    let mut bias = Parameter::new("bias", SIZE, SIZE);
    let mut found = Vec::new();
    for step in 0..STEPS {
        let weights: Vec<_> = layers.iter().map(|layer| as_stored(format, &layer.master)).collect();
        let transposed: Vec<_> =
            layers.iter().map(|layer| transposed_as_stored(format, &layer.master)).collect();
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                let value = |at: usize| ((step * 31 + rank * 7 + at as u32 * 3) as f32 * 0.37).sin();
                let input: Vec<f32> = (0..SIZE).map(value).collect();
                one_rank(&weights, &transposed, &bias.master, &input)
            })
            .collect();
        found.push((ranks.iter().map(|(loss, ..)| loss).sum::<f32>() / RANKS as f32).to_bits());
        for (number, layer) in layers.iter_mut().enumerate() {
            let gradient = mean(ranks.iter().map(|(_, gradients, _)| &gradients[number]));
            layer.update(&gradient, step as i32 + 1);
        }
        let of_bias: Vec<_> = ranks.iter().map(|(_, _, of_bias)| of_bias.clone()).collect();
        bias.update(&replicated_mean(&of_bias), step as i32 + 1);
    }
    found
}

/// C4, C6.
#[test]
fn a_sharded_trainer_gives_the_losses_of_an_unsharded_one_exactly_at_every_step_in_every_format() {
    within_a_minute(async {
        for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
            let mut config = Config { check: true, ..Config::default() };
            config.optimizer.lr = f64::from(RATE);
            config.prefetch.depth = 2;
            let mut session = Trainer::new(LAYERS, format).start(config, RANKS).await.unwrap();
            let found = losses(&mut session, RANKS, 0..STEPS).await;
            assert_eq!(found, reference(format), "{format}");
            assert!(f32::from_bits(found[STEPS as usize - 1]) < f32::from_bits(found[0]), "{format} learns");
        }
    });
}
