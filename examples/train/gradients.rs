//! Every call's backward against finite differences of its forward, and what must hold of the whole.
//!
//! Law: the slope of a function along a direction is measured by a central difference and compared with
//! the inner product of gradient and direction; the directions are the gradient itself and random ones,
//! so that a missing or misplaced term of any size cannot cancel out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::init::{Stream, initial};
use crate::model::{Config, Scratch, VOCABULARY, buffers, parameters};
use crate::{attention, embedding, head, mlp};

fn config() -> Config {
    Config { width: 16, layers: 1, heads: 4, hidden: 32, sequence: 7, batch: 2 }.check().unwrap()
}

/// Scratch in which another call left something: nothing of it may reach a result.
fn scratch(config: &Config) -> Scratch {
    let mut scratch = Scratch::new(config);
    for left in [
        &mut scratch.normalized,
        &mut scratch.gradient,
        &mut scratch.activated,
        &mut scratch.hidden_gradient,
        &mut scratch.qkv_gradient,
        &mut scratch.probabilities,
        &mut scratch.probability_gradient,
        &mut scratch.logits,
    ] {
        left.fill(f32::NAN);
    }
    scratch
}

fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut stream = Stream::keyed(seed, []);
    (0..len).map(|_| stream.symmetric()).collect()
}

fn inner(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn transposed(matrix: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| matrix[i % rows * cols + i / rows]).collect()
}

/// `function` maps the inputs to a number; `gradients[i]` is claimed to be its gradient in `inputs[i]`.
fn check(names: &[&str], inputs: &[Vec<f32>], gradients: &[Vec<f32>], function: impl Fn(&[Vec<f32>]) -> f64) {
    for (index, (name, gradient)) in names.iter().zip(gradients).enumerate() {
        let norm = inner(gradient, gradient).sqrt();
        assert!(norm > 1e-3, "{name}: a gradient of zero proves nothing");
        for seed in 0..6 {
            let direction = match seed {
                0 => gradient.clone(),
                seed => random(gradient.len(), 100 + seed),
            };
            let length = inner(&direction, &direction).sqrt();
            let at = |step: f64| {
                let mut inputs = inputs.to_vec();
                for (x, d) in inputs[index].iter_mut().zip(&direction) {
                    *x += (step * f64::from(*d) / length) as f32;
                }
                function(&inputs)
            };
            let step = 0.02;
            // Two widths of central difference, extrapolated: the error left is of fourth order.
            let slope = |step: f64| (at(step) - at(-step)) / (2.0 * step);
            let measured = (4.0 * slope(step) - slope(2.0 * step)) / 3.0;
            let claimed = inner(gradient, &direction) / length;
            let error = (measured - claimed).abs() / norm;
            assert!(
                error < 1e-3,
                "{name}, direction {seed}: measured {measured}, claimed {claimed}, error {error:.1e}"
            );
        }
    }
}

#[test]
fn attention_backward_is_the_slope_of_attention_forward() {
    let config = config();
    let (tokens, width) = (config.tokens(), config.width);
    let inputs =
        [random(tokens * width, 1), random(width, 2), random(3 * width * width, 3), random(width * width, 4)];
    let weighting = random(tokens * width, 5);
    let forward = |inputs: &[Vec<f32>], kept: &mut [Vec<f32>; 3]| {
        let [x, gain, qkv, output] = inputs else { unreachable!() };
        let [rotated, logsumexp, mixed] = kept;
        let mut y = vec![f32::NAN; tokens * width];
        let keep: attention::Kept<&mut [f32]> = attention::Kept { rotated, logsumexp, mixed };
        let weights: attention::Weights<&[f32]> = attention::Weights { gain, qkv, output };
        attention::forward(&config, x, weights, keep, &mut y, &mut scratch(&config));
        inner(&y, &weighting)
    };
    let empty = || [3 * width, config.heads, width].map(|features| vec![f32::NAN; tokens * features]);
    let mut kept = empty();
    forward(&inputs, &mut kept);
    let mut gradients = inputs.clone().map(|input| vec![f32::NAN; input.len()]);
    gradients[0].copy_from_slice(&weighting);
    let [x, gain, qkv, output] = &mut gradients;
    attention::backward(
        &config,
        &inputs[0],
        attention::Weights {
            gain: &inputs[1],
            qkv: &transposed(&inputs[2], 3 * width, width),
            output: &transposed(&inputs[3], width, width),
        },
        attention::Kept { rotated: &kept[0], logsumexp: &kept[1], mixed: &kept[2] },
        attention::Weights { gain: Some(gain), qkv: Some(qkv), output: Some(output) },
        x,
        &mut scratch(&config),
    );
    check(&["x", "gain", "qkv", "output"], &inputs, &gradients, |inputs| forward(inputs, &mut empty()));
}

#[test]
fn mlp_backward_is_the_slope_of_mlp_forward() {
    let config = config();
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    let inputs = [
        random(tokens * width, 1),
        random(width, 2),
        random(features * width, 3),
        random(width * features, 4),
    ];
    let weighting = random(tokens * width, 5);
    let forward = |inputs: &[Vec<f32>], hidden: &mut [f32]| {
        let [x, gain, up, down] = inputs else { unreachable!() };
        let mut y = vec![f32::NAN; tokens * width];
        mlp::forward(&config, x, mlp::Weights { gain, up, down }, hidden, &mut y, &mut scratch(&config));
        inner(&y, &weighting)
    };
    let mut hidden = vec![f32::NAN; tokens * features];
    forward(&inputs, &mut hidden);
    let mut gradients = inputs.clone().map(|input| vec![f32::NAN; input.len()]);
    gradients[0].copy_from_slice(&weighting);
    let [x, gain, up, down] = &mut gradients;
    mlp::backward(
        &config,
        &inputs[0],
        mlp::Weights {
            gain: &inputs[1],
            up: &transposed(&inputs[2], features, width),
            down: &transposed(&inputs[3], width, features),
        },
        &hidden,
        mlp::Weights { gain: Some(gain), up: Some(up), down: Some(down) },
        x,
        &mut scratch(&config),
    );
    check(&["x", "gain", "up", "down"], &inputs, &gradients, |inputs| {
        forward(inputs, &mut vec![f32::NAN; tokens * features])
    });
}

#[test]
fn the_heads_gradient_is_the_slope_of_its_loss() {
    let config = config();
    let (tokens, width) = (config.tokens(), config.width);
    let inputs = [random(tokens * width, 1), random(width, 2), random(VOCABULARY * width, 3)];
    let targets: Vec<u8> = (0..tokens).map(|i| (i * 37 % 256) as u8).collect();
    let mut gradients = inputs.clone().map(|input| vec![f32::NAN; input.len()]);
    let [x, gain, table] = &mut gradients;
    let weights: head::Weights<&[f32]> = head::Weights { gain: &inputs[1], table: &inputs[2] };
    let mut scratch = scratch(&config);
    let loss = head::forward_backward(
        &config,
        &inputs[0],
        weights,
        &targets,
        head::Weights { gain: Some(gain), table: Some(table) },
        x,
        &mut scratch,
    );
    assert_eq!(loss, head::evaluate(&config, &inputs[0], weights, &targets, &mut scratch));
    // The loss is one f32, so its own rounding would drown the slope: sum it from the logits in f64.
    check(&["x", "gain", "table"], &inputs, &gradients, |inputs| {
        exact_loss(&inputs[0], &inputs[1], &inputs[2], &targets)
    });
    assert!((exact_loss(&inputs[0], &inputs[1], &inputs[2], &targets) - f64::from(loss)).abs() < 1e-5);
}

/// The head's loss by its definition, in f64.
fn exact_loss(x: &[f32], gain: &[f32], table: &[f32], targets: &[u8]) -> f64 {
    let width = gain.len();
    let losses = x.chunks_exact(width).zip(targets).map(|(x, &target)| {
        let rms = (inner(x, x) / width as f64 + 1e-6).sqrt();
        let logit = |row: &[f32]| {
            (0..width).map(|i| f64::from(x[i]) / rms * f64::from(gain[i]) * f64::from(row[i])).sum()
        };
        let logits: Vec<f64> = table.chunks_exact(width).map(logit).collect();
        logits.iter().map(|logit| logit.exp()).sum::<f64>().ln() - logits[usize::from(target)]
    });
    losses.sum::<f64>() / targets.len() as f64
}

#[test]
fn embedding_backward_is_the_slope_of_embedding_forward() {
    let (tokens, width) = ([3u8, 255, 3, 0], 16);
    let (table, weighting) = (random(VOCABULARY * width, 1), random(4 * width, 2));
    let mut gradient = vec![f32::NAN; table.len()];
    embedding::backward(width, &tokens, &weighting, &mut gradient);
    check(&["table"], &[table], &[gradient], |inputs| {
        let mut x = vec![f32::NAN; 4 * width];
        embedding::forward(width, &tokens, &inputs[0], &mut x);
        inner(&x, &weighting)
    });
}

/// The gradients of the weights that train.
fn trained<const N: usize>(gradients: &mut [Vec<f32>; N], trains: [bool; N]) -> [Option<&mut [f32]>; N] {
    let mut trains = trains.into_iter();
    gradients.each_mut().map(|gradient| trains.next().unwrap().then_some(&mut gradient[..]))
}

/// `backward` gives the gradients of weights and of `x`, if these weights train.
fn check_frozen<const N: usize>(backward: impl Fn([bool; N]) -> ([Vec<f32>; N], Vec<f32>)) {
    let (all, x) = backward([true; N]);
    assert!(all.iter().flatten().chain(&x).all(|gradient| gradient.is_finite()));
    for mask in 0..(1 << N) - 1 {
        let trains: [bool; N] = std::array::from_fn(|weight| mask >> weight & 1 == 1);
        let (some, same) = backward(trains);
        assert_eq!(same, x, "{trains:?}");
        for weight in (0..N).filter(|weight| trains[*weight]) {
            assert_eq!(some[weight], all[weight], "{trains:?}, weight {weight}");
        }
    }
}

#[test]
fn weights_that_are_frozen_change_no_other_gradient() {
    let config = config();
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    let (x, gain) = (random(tokens * width, 1), &random(width, 2)[..]);
    let (qkv, output) = (&random(3 * width * width, 3)[..], &random(width * width, 4)[..]);
    let (rotated, logsumexp, mixed) =
        (&random(tokens * 3 * width, 5)[..], &random(tokens * config.heads, 6)[..], &x[..]);
    check_frozen(|trains| {
        let mut gradients = [gain, qkv, output].map(|weight| vec![f32::NAN; weight.len()]);
        let mut residual = random(tokens * width, 7);
        let weights = attention::Weights { gain, qkv, output };
        let kept = attention::Kept { rotated, logsumexp, mixed };
        let [gain, qkv, output] = trained(&mut gradients, trains);
        let written = attention::Weights { gain, qkv, output };
        attention::backward(&config, &x, weights, kept, written, &mut residual, &mut scratch(&config));
        (gradients, residual)
    });
    let (up, down) = (&random(features * width, 3)[..], &random(width * features, 4)[..]);
    let hidden = random(tokens * features, 5);
    check_frozen(|trains| {
        let mut gradients = [gain, up, down].map(|weight| vec![f32::NAN; weight.len()]);
        let mut residual = random(tokens * width, 7);
        let weights = mlp::Weights { gain, up, down };
        let [gain, up, down] = trained(&mut gradients, trains);
        let written = mlp::Weights { gain, up, down };
        mlp::backward(&config, &x, weights, &hidden, written, &mut residual, &mut scratch(&config));
        (gradients, residual)
    });
    let table = &random(VOCABULARY * width, 3)[..];
    let targets: Vec<u8> = (0..tokens).map(|i| (i * 37 % 256) as u8).collect();
    check_frozen(|trains| {
        let mut gradients = [gain, table].map(|weight| vec![f32::NAN; weight.len()]);
        let mut residual = vec![f32::NAN; tokens * width];
        let (weights, mut scratch) = (head::Weights { gain, table }, scratch(&config));
        let [gain, table] = trained(&mut gradients, trains);
        let written = head::Weights { gain, table };
        head::forward_backward(&config, &x, weights, &targets, written, &mut residual, &mut scratch);
        (gradients, residual)
    });
}

#[test]
fn attention_sees_the_past_of_its_own_text_and_nothing_else() {
    let config = config();
    let (tokens, width) = (config.tokens(), config.width);
    let (gain, qkv, output) = (vec![1.0; width], random(3 * width * width, 2), random(width * width, 3));
    let forward = |x: &[f32]| {
        let mut kept = [3 * width, config.heads, width].map(|features| vec![f32::NAN; tokens * features]);
        let [rotated, logsumexp, mixed] = &mut kept;
        let mut y = vec![f32::NAN; tokens * width];
        let keep: attention::Kept<&mut [f32]> = attention::Kept { rotated, logsumexp, mixed };
        let weights: attention::Weights<&[f32]> =
            attention::Weights { gain: &gain, qkv: &qkv, output: &output };
        attention::forward(&config, x, weights, keep, &mut y, &mut scratch(&config));
        y
    };
    let x = random(tokens * width, 1);
    let (before, changed) = (forward(&x), 3);
    let mut other = x.clone();
    other[changed * width] += 1.0;
    let after = forward(&other);
    for token in 0..tokens {
        let row = token * width..(token + 1) * width;
        let moved = before[row.clone()] != after[row];
        assert_eq!(moved, (changed..config.sequence).contains(&token), "token {token}");
    }
}

#[test]
fn names_are_unique_and_matrices_fit_quantized_tiles() {
    let config = Config::default().check().unwrap();
    let names = parameters(&config).into_iter().map(|p| p.name);
    let mut names: Vec<_> = names.chain(buffers(&config).into_iter().map(|b| b.name)).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    for parameter in parameters(&config) {
        assert!(parameter.cols == 1 || parameter.rows % 16 + parameter.cols % 16 == 0, "{parameter:?}");
        assert_eq!(initial(&parameter, 0).len(), parameter.rows * parameter.cols);
    }
    let odd = Config { heads: 5, ..config }.check().unwrap_err();
    assert!(odd.to_string().starts_with("heads = 5"), "{odd}");
}
