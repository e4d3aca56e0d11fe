//! Trains a small language model whose layers are candle's, forward and backward by candle's autograd.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml`
//!
//! The layers are ordinary functions over candle's tensors (`model.rs`). warpweft shards their weights over two ranks
//! of this machine's CPU, gathers them quantized and calls one closure for each layer, which turns what is lent into
//! tensors, runs the layer under autograd, and gives the gradients back (`closure.rs`). The same functions are then
//! trained by candle alone, with candle's optimizer and weights in f32 (`alone.rs`). Both begin with the same weights
//! and see the same batches, so in f32 the losses must agree, which is checked; what NVFP4 and FP8 cost is printed
//! beside them, and checked to be little.
//!
//! With the feature `cuda`, ranks are GPUs if there are any (`on_cuda.rs`); docs/interop.md says what it takes.

mod alone;
mod closure;
mod model;
mod on_cpu;
#[cfg(feature = "cuda")]
mod on_cuda;
mod place;
mod program;
mod text;

#[path = "../../shared/print.rs"]
mod print;

use std::error::Error;

use candle_nn::optim::ParamsAdamW;
use warpweft::prelude::*;
use warpweft::session::Checkpoint;

use closure::Step;
use place::Place;
use print::println;

const STEPS: usize = 100;
/// Samples of a step, over all ranks.
const SAMPLES: usize = 128;
/// Largest difference of a step's loss that is put down to the order of sums, in f32.
const SAME: f32 = 1e-3;
/// How much larger quantized weights may leave the mean loss of the last steps.
const QUANTIZED: f32 = 1.05;

/// The optimizer of both trainers: warpweft's AdamW and candle's are the same formula.
fn rates() -> ParamsAdamW {
    ParamsAdamW { lr: 2e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 }
}

struct Run {
    losses: Vec<f32>,
    begun: Checkpoint,
    trained: Checkpoint,
}

/// Trains with weights in `format`.
async fn train(place: &Place, format: Format) -> Result<Run, Box<dyn Error>> {
    let samples = SAMPLES / place.ranks();
    let layers = model::layers();
    let program::Declared { program, jobs, weights } = program::declare(&layers, format, samples)?;
    let rates = rates();
    let mut config = Config::default();
    config.optimizer.lr = rates.lr;
    (config.optimizer.beta1, config.optimizer.beta2) = (rates.beta1, rates.beta2);
    (config.optimizer.eps, config.optimizer.weight_decay) = (rates.eps, rates.weight_decay);
    let step = Step { layers, weights, jobs, samples };
    let mut session = place.start(config, step, program).await?;

    let begun = session.export().await?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        for rank in session.own_ranks() {
            let batch = text::batch(step, rank.index(), samples);
            session.write_input("train", rank, "windows", &batch.windows)?;
            session.write_input("train", rank, "targets", &batch.targets)?;
        }
        losses.push(session.step("train").await?.mean_output("loss")?);
    }
    let trained = session.export().await?;
    session.close().await?;
    Ok(Run { losses, begun, trained })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let place = Place::choose();
    let (device, layers) = (place.device()?, model::layers());
    let parameters: usize = layers.iter().flat_map(|layer| &layer.weights).map(|w| w.rows * w.columns).sum();
    println!(
        "{parameters} parameters, {} ranks, {STEPS} steps of {SAMPLES} samples, {device:?}",
        place.ranks()
    );

    let formats = [Format::F32, "fp8_block".parse()?, Format::NVFP4_2D];
    let mut runs = Vec::new();
    for format in formats {
        runs.push(train(&place, format).await?);
    }
    let (alone, alone_held_out) = alone::train(&layers, &runs[0].begun, (STEPS, SAMPLES), rates(), &device)?;

    println!("\n{:>14}  {:>10}{}", "loss at step", "candle", formats.map(|f| format!("  {f:>20}")).concat());
    for step in (0..STEPS).step_by(10).chain([STEPS - 1]) {
        let ours: String = runs.iter().map(|run| format!("  {:20.5}", run.losses[step])).collect();
        println!("{:14}  {:10.5}{ours}", step + 1, alone[step]);
    }
    let mut ours = String::new();
    for run in &runs {
        ours += &format!("  {:20.5}", alone::evaluate(&layers, &run.trained, &device)?);
    }
    println!("{:>14}  {alone_held_out:10.5}{ours}", "held-out");

    let apart =
        runs[0].losses.iter().zip(&alone).map(|(ours, alone)| (ours - alone).abs()).fold(0.0, f32::max);
    println!(
        "\nin f32 the losses of a step differ from candle's by at most {apart:.1e} (allowed: {SAME:.0e})"
    );
    let last = |losses: &[f32]| losses[STEPS - 10..].iter().sum::<f32>() / 10.0;
    for (format, run) in formats.iter().zip(&runs) {
        let times = last(&run.losses) / last(&alone);
        println!(
            "{format}: the mean loss of the last ten steps is {times:.4} times candle's (allowed: {QUANTIZED})"
        );
        assert!(times < QUANTIZED && last(&run.losses) < 0.8 * run.losses[0], "{format} does not learn");
    }
    assert!(apart < SAME, "weights in f32 do not give candle's losses");
    Ok(())
}
