//! Trains a small language model whose layers are candle's, forward and backward by candle's autograd.
//!
//! `cargo run --release --manifest-path examples/candle_on_a_gpu/Cargo.toml`
//!
//! The layers are ordinary functions over candle's tensors (`model.rs`). warpweft shards their weights over two ranks
//! of this machine's CPU, gathers them quantized and calls one closure for each layer, which turns what is lent into
//! tensors, runs the layer under autograd, and gives the gradients back (`closure.rs`). The same functions are then
//! trained by candle alone, with candle's optimizer and weights in f32 (`alone.rs`). Both begin with the same weights
//! and see the same batches, so in f32 the losses must agree, which is checked; what NVFP4 and FP8 cost is printed
//! beside them, and checked to be little. One more run keeps autograd's graph between a layer's forward and backward:
//! it gathers every weight once, and must give the same bits.
//!
//! With the feature `cuda`, ranks are GPUs if there are any (`on_cuda.rs`); docs/interop.md says what it takes.

mod alone;
mod closure;
mod model;
mod on_cpu;
#[cfg(feature = "cuda")]
mod on_cuda;
mod place;

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

use std::error::Error;

use candle_nn::optim::ParamsAdamW;
use warpweft::checkpoint::Checkpoint;
use warpweft::prelude::*;

use closure::Step;
use compare::Losses;
use place::Place;
use print::println;

const STEPS: usize = 100;
/// Samples of a step, over all ranks.
const SAMPLES: usize = 128;

/// The optimizer of both trainers: warpweft's AdamW and candle's are the same formula.
fn rates() -> ParamsAdamW {
    ParamsAdamW { lr: 2e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 }
}

struct Run {
    losses: Vec<f32>,
    /// What a rank receives in a step.
    wire_bytes: usize,
    begun: Checkpoint,
    trained: Checkpoint,
}

/// Trains with weights in `format`.
async fn train(place: &Place, format: Format, keeps_graph: bool) -> Result<Run, Box<dyn Error>> {
    let samples = SAMPLES / place.ranks();
    let layers = model::layers();
    let program::Declared { program, jobs, weights } =
        program::declare(&layers, format, samples, keeps_graph)?;
    let rates = rates();
    let mut config = Config::default();
    config.optimizer.lr = rates.lr;
    (config.optimizer.beta1, config.optimizer.beta2) = (rates.beta1, rates.beta2);
    (config.optimizer.eps, config.optimizer.weight_decay) = (rates.eps, rates.weight_decay);
    let step = Step { layers, weights, jobs, samples, keeps_graph };
    let mut session = place.start(config, step, program).await?;

    let (begun, wire_bytes) = (session.export().await?, session.plan("train")?.bounds.wire_bytes);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        for rank in session.own_ranks() {
            let batch = text::batch(step, rank.index(), samples);
            session.write_input("train", rank, "windows", &batch.windows)?;
            session.write_input("train", rank, "targets", &batch.targets)?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        losses.push(report.mean_output("loss")?);
    }
    let trained = session.export().await?;
    session.close().await?;
    Ok(Run { losses, wire_bytes, begun, trained })
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
        runs.push(train(&place, format, false).await?);
    }
    if let (Some(format), Some(recomputed)) = (formats.last(), runs.last()) {
        let kept = train(&place, *format, true).await?;
        if kept.losses != recomputed.losses || kept.trained != recomputed.trained {
            return Err("a graph that was kept gives other bits than one that was recomputed".into());
        }
        println!(
            "with graphs kept from forward to backward: the same bits, and {} in place of {} bytes from other ranks",
            kept.wire_bytes, recomputed.wire_bytes
        );
    }
    let alone = alone::train(&layers, &runs[0].begun, (STEPS, SAMPLES), rates(), &device)?;
    let mut ours = Vec::new();
    for (format, run) in formats.into_iter().zip(runs) {
        let held_out = alone::evaluate(&layers, &run.trained, &device)?;
        ours.push((format, Losses { steps: run.losses, held_out }));
    }
    compare::compare("candle", &alone, &ours)
}
