//! The transformer that continues texts, sharded, beside burn alone: losses on one rank and on four, gradients,
//! padding.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Bool, Device, Gradients, Int, Tensor};
use burn_example::generation::{
    ByteTokenizer, Pair, TextGenerationBatcher, TextGenerationModel, TextGenerationModelConfig, Tokenizer,
    count, cross_entropy,
};
use burn_example::text;
use warpweft_burn::{Devices, Kind, Sharded, ShardedModel};

const STEPS: usize = 20;
const SAMPLES: usize = 16;
const RATE: f64 = 3e-3;

fn adam() -> AdamConfig {
    AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-6)))
}

fn config() -> TextGenerationModelConfig {
    TextGenerationModelConfig::small(ByteTokenizer.vocab_size())
}

fn pair(step: usize) -> Pair {
    let batcher = TextGenerationBatcher::new(ByteTokenizer, config().max_seq_length);
    batcher.batch(&text::lines(step, SAMPLES), &Device::flex().autodiff()).into_pair()
}

async fn sharded(model: TextGenerationModel, ranks: u32) -> ShardedModel<TextGenerationModel> {
    let builder = Sharded::new(adam(), model)
        .learning_rate(RATE)
        .block("embed", |model: &TextGenerationModel, x: Tensor<2, Int>| model.embed(x))
        .blocks(config().transformer.n_layers, |at, model, (x, pad): (Tensor<3>, Tensor<2, Bool>)| {
            model.layer(at, x, pad)
        })
        .block("output", |model, x: Tensor<3>| model.output.forward(x))
        .loss(|x, y: Tensor<2, Int>| (cross_entropy(x, y.clone()) * count(y.clone()), count(y)));
    builder.shard(Devices::cpu(ranks), pair(0)).await.unwrap()
}

fn number(scalar: Tensor<1>) -> f32 {
    scalar.into_scalar::<f32>()
}

/// burn alone, which takes the mean over the tokens of all `parts` of a batch.
fn alone(mut model: TextGenerationModel, parts: usize) -> Vec<f32> {
    let (mut optimizer, mut losses) = (adam().init(), Vec::new());
    for step in 0..STEPS {
        let ((x, pad), y) = pair(step);
        let samples = SAMPLES / parts;
        let mut sum = Tensor::zeros([1], &x.device());
        for part in 0..parts {
            let x = x.clone().narrow(0, part * samples, samples);
            let pad = pad.clone().narrow(0, part * samples, samples);
            let y = y.clone().narrow(0, part * samples, samples);
            sum = sum + cross_entropy(model.forward(x, &pad), y.clone()) * count(y);
        }
        let loss = if parts == 1 { cross_entropy(model.forward(x, &pad), y) } else { sum / count(y) };
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(RATE, model, gradients);
        losses.push(number(loss));
    }
    losses
}

fn apart(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| ((one - other) / other).abs()).fold(0.0, f32::max)
}

async fn trained(model: TextGenerationModel, ranks: u32) -> Vec<f32> {
    let (mut model, mut losses) = (sharded(model, ranks).await, Vec::new());
    for step in 0..STEPS {
        losses.push(model.step(pair(step)).await.unwrap().loss);
    }
    losses
}

#[tokio::test]
async fn losses_are_those_of_burn_alone_on_one_rank_and_on_four() {
    let model = config().init(&Device::flex().autodiff());
    let (whole, parts) = (alone(model.clone(), 1), alone(model.clone(), 4));
    let (one, four) = (trained(model.clone(), 1).await, trained(model, 4).await);
    let (of_one, of_four, theirs) = (apart(&one, &whole), apart(&four, &one), apart(&parts, &whole));
    println!("one rank {of_one:.2e} from burn, four {of_four:.2e} from one; burn's four parts {theirs:.2e}");
    assert!(of_one <= 1e-5, "{of_one:e}");
    assert!(of_four <= 3.0 * theirs.max(f32::EPSILON), "{of_four:e} {theirs:e}");
}

struct Named {
    path: Vec<String>,
    all: Gradients,
    found: Vec<(String, Vec<f32>)>,
}

impl ModuleVisitor for Named {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let gradient = parameter.val().grad(&self.all).unwrap();
        let gradient = gradient.into_data().as_slice::<f32>().unwrap().to_vec();
        self.found.push((self.path.join("."), gradient));
    }
}

/// Lines are of all lengths, so every rank has another number of tokens that count: burn's mean is over all of them.
#[tokio::test]
async fn on_four_ranks_every_weight_has_burns_gradient_whatever_is_padding() {
    let model = config().init(&Device::flex().autodiff());
    let ((x, pad), y) = pair(1);
    let of_rank = |rank: usize| number(count(y.clone().narrow(0, rank * SAMPLES / 4, SAMPLES / 4)));
    let counts: Vec<f32> = (0..4).map(of_rank).collect();
    println!("tokens that count on each rank: {counts:?}");
    assert!(counts.iter().any(|count| *count != counts[0]));
    let loss = cross_entropy(model.forward(x, &pad), y);
    let (expected, all) = (number(loss.clone()), loss.backward());
    let mut sharded = sharded(model.clone(), 4).await;
    let given = sharded.step(pair(1)).await.unwrap().loss;
    assert!(apart(&[given], &[expected]) < 1e-5, "{given} {expected}");
    let mut named = Named { path: Vec::new(), all, found: Vec::new() };
    model.visit(&mut named);
    assert_eq!(named.found.len(), sharded.tensors().len());
    assert!(sharded.tensors().iter().all(|entry| entry.kind == Kind::Trained));
    for (name, theirs) in named.found {
        let ours = sharded.gradient(&name).await.unwrap();
        let (ours, largest) = (ours.as_slice::<f32>().unwrap(), |values: &[f32]| {
            values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()))
        });
        let differences: Vec<f32> = ours.iter().zip(&theirs).map(|(one, other)| one - other).collect();
        let (size, apart) = (largest(&theirs), largest(&differences));
        assert!(largest(ours) > 0.0 && apart <= 1e-4 * size, "{name}: {apart} of {size}");
    }
}

#[test]
fn tokens_are_the_text_again() {
    let tokens = ByteTokenizer.encode("Übung", true);
    assert_eq!((tokens.len(), ByteTokenizer.decode(&tokens).as_str()), (8, "Übung"));
}
