//! Trains a small language model whose layers are modules of burn, forward and backward by burn's autodiff.
//!
//! `cargo run --release --manifest-path examples/burn/Cargo.toml`
//!
//! The layers are ordinary modules (`model.rs`). warpweft shards their weights over two ranks of this machine's CPU,
//! gathers them quantized and calls one closure for each layer, which puts what is lent into the parameters of a
//! module, runs it under autodiff, and gives the gradients back (`closure.rs`, `values.rs`). The same modules are then
//! trained by burn alone, with burn's optimizer and weights in f32 (`alone.rs`). Both begin with the same weights and
//! see the same batches, so in f32 the losses must agree, which is checked; what NVFP4 and FP8 cost is printed beside
//! them, and checked to be little.

mod alone;
mod closure;
mod model;
mod values;

#[path = "../../shared/compare.rs"]
mod compare;
#[path = "../../shared/print.rs"]
mod print;
#[path = "../../shared/program.rs"]
mod program;
#[path = "../../shared/sizes.rs"]
mod sizes;
#[path = "../../shared/text.rs"]
mod text;

use std::collections::BTreeMap;
use std::error::Error;

use burn::tensor::Device;
use warpweft::config::OptimizerConfig;
use warpweft::prelude::*;
use warpweft::session::initial::MasterRows;

use closure::Closure;
use compare::Losses;
use model::Layer;
use print::println;

const RANKS: u32 = 2;
const STEPS: usize = 100;
/// Samples of a step, over all ranks.
const SAMPLES: usize = 128;
/// Of the values that burn gives parameters to begin with.
const SEED: u64 = 17;

/// Values by the name of the weight, row-major.
type Values = BTreeMap<String, Vec<f32>>;

/// The optimizer of both trainers. warpweft's AdamW and burn's are the same formula: decay of the weight before the
/// update, times the learning rate, and `eps` beside the root of the corrected second moment.
fn optimizer() -> OptimizerConfig {
    OptimizerConfig {
        lr: 2e-3,
        beta1: 0.9,
        beta2: 0.99,
        eps: 1e-8,
        weight_decay: 0.01,
        ..OptimizerConfig::default()
    }
}

/// The values of all parameters.
fn values(layers: &[Layer]) -> Result<Values, Box<dyn Error>> {
    let mut found = Values::new();
    for layer in layers {
        for (weight, values) in layer.weights.iter().zip(values::values(&layer.part)) {
            found.insert(weight.name.clone(), values.as_slice::<f32>()?.to_vec());
        }
    }
    Ok(found)
}

/// Trains with weights in `format`, which begin with the values `begun`.
async fn train(format: Format, begun: Values) -> Result<Losses, Box<dyn Error>> {
    let samples = SAMPLES / RANKS as usize;
    let layers = model::layers(&Device::flex());
    let program::Declared { program, jobs, weights } = program::declare(&layers, format, samples, false)?;
    let closures = move |_| Closure {
        layers: model::layers(&Device::flex()),
        weights: weights.clone(),
        jobs: jobs.clone(),
        samples,
    };
    let initial = move |rows: MasterRows<'_>, masters: &mut [f32]| {
        let whole = &begun[rows.weight];
        masters.copy_from_slice(&whole[rows.first_element()..][..masters.len()]);
    };
    let config = Config { optimizer: optimizer(), ..Config::default() };
    let builder = Session::builder(config, closures).program(program).initialize(initial);
    let mut session = builder.start_cpu(RANKS).await?;

    let mut steps = Vec::new();
    for step in 0..STEPS {
        for rank in session.own_ranks() {
            let batch = text::batch(step, rank.index(), samples);
            session.write_input("train", rank, "windows", &batch.windows)?;
            session.write_input("train", rank, "targets", &batch.targets)?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        steps.push(report.mean_output("loss")?);
    }
    let trained = session.export().await?;
    session.close().await?;
    Ok(Losses { steps, held_out: alone::evaluate(&layers, &trained, &Device::flex())? })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    device.seed(SEED);
    let layers = model::layers(&device);
    let begun = values(&layers)?;
    let parameters: usize = begun.values().map(Vec::len).sum();
    println!("{parameters} parameters, {RANKS} ranks, {STEPS} steps of {SAMPLES} samples");

    let mut ours = Vec::new();
    for format in [Format::F32, "fp8_block".parse()?, Format::NVFP4_2D] {
        ours.push((format, train(format, begun.clone()).await?));
    }
    let parts = layers.into_iter().map(|layer| layer.part).collect();
    let alone = alone::train(parts, (STEPS, SAMPLES), &optimizer(), &device)?;
    compare::compare("burn", &alone, &ours)
}
