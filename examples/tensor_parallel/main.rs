//! Trains a transformer with tensor and sequence parallelism on CPU ranks, beside its unparallel self.
//!
//! `cargo run --release --example tensor_parallel -- --help`
//!
//! Four texts of one batch are trained on by one rank, by two tensor-parallel pairs whose weights are sharded over both
//! (`tp 2 × 2 shards`), by one group of four (`tp 4`) and by two pairs that are replicas (`tp 2 × 2 replicas`). Losses
//! are the same but for the order in which sums are rounded.

#[path = "../train/ops.rs"]
#[allow(dead_code, reason = "the job trains with more of them")]
mod ops;
#[path = "../shared/print.rs"]
mod print;
#[path = "../train/product.rs"]
#[allow(dead_code, reason = "the job multiplies strided matrices too")]
mod product;

mod attention;
mod closure;
mod model;

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use warpweft::prelude::*;
use warpweft::session::initial;

use model::Sizes;
use print::println;

const TEXT: &[u8] = include_bytes!("../../LICENSE-APACHE");
/// Texts of a batch, of all ranks together.
const TEXTS: usize = 4;

/// Trains one transformer on several meshes and compares the losses.
#[derive(Parser)]
#[command(name = "tensor_parallel")]
struct Arguments {
    /// Steps of the optimizer
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Format of the blocks' matrices: f32, bf16, nvfp4_2d, mxfp8 or fp8_block, whose blocks need --width 512
    #[arg(long, default_value = "f32")]
    format: Format,
    /// Quantize query, key and value of a block by one scale, as inference engines do (nvfp4_2d)
    #[arg(long)]
    scale_groups: bool,
    /// Features of the residual stream, a multiple of 16; the MLP has four times as many
    #[arg(long, default_value_t = 128, value_parser = width)]
    width: usize,
    /// Where the trace of a few steps with tp 2 × 2 shards goes, for Perfetto
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Heads and parts of layers divide it.
fn width(text: &str) -> Result<usize, String> {
    let width = text.parse::<usize>().map_err(|error| error.to_string())?;
    match width > 0 && width.is_multiple_of(16) {
        true => Ok(width),
        false => Err("give a multiple of 16, above zero".to_owned()),
    }
}

/// A mesh to train on.
struct Grid {
    name: &'static str,
    ranks: u32,
    tensor: u32,
    replicas: u32,
}

const GRIDS: [Grid; 4] = [
    Grid { name: "one rank", ranks: 1, tensor: 1, replicas: 1 },
    Grid { name: "tp 2 × 2 shards", ranks: 4, tensor: 2, replicas: 1 },
    Grid { name: "tp 4", ranks: 4, tensor: 4, replicas: 1 },
    Grid { name: "tp 2 × 2 replicas", ranks: 4, tensor: 2, replicas: 2 },
];

/// The sizes for the texts that a tensor-parallel group of this mesh has.
fn sizes(grid: &Grid, width: usize) -> Sizes {
    let groups = (grid.ranks / grid.tensor) as usize;
    let tensor = grid.tensor as usize;
    Sizes { width, layers: 2, heads: 4, hidden: 4 * width, sequence: 32, texts: TEXTS / groups, tensor }
}

/// The tokens of a text of a step's batch, and those after them.
fn text(step: usize, number: usize, sequence: usize) -> (Vec<u32>, Vec<u32>) {
    let place = ((step * TEXTS + number) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
    let place = place as usize % (TEXT.len() - sequence - 1);
    let tokens = |begin: usize| TEXT[begin..begin + sequence].iter().copied().map(u32::from).collect();
    (tokens(place), tokens(place + 1))
}

/// The loss of every step.
async fn train(grid: &Grid, arguments: &Arguments) -> Result<Vec<f32>, Box<dyn Error>> {
    let sizes = sizes(grid, arguments.width);
    let mut config = Config::default();
    (config.mesh.tp, config.mesh.dp_replicate) = (grid.tensor, Some(grid.replicas));
    config.optimizer.max_norm = 1.0;
    // Adam divides a gradient by its own size: where that is rounding alone, so would the update be.
    config.optimizer.eps = 1e-4;
    if let Some(path) = arguments.trace.as_ref().filter(|_| grid.tensor == 2 && grid.replicas == 1) {
        (config.trace.enabled, config.trace.path) = (true, path.display().to_string());
    }
    let declared = model::model(sizes, arguments.format, arguments.scale_groups)?;
    let run = move |call: &Call, context: &ComputeContext<'_, CpuSurface>| closure::run(sizes, call, context);
    let builder = Session::builder(config, move |_| on_cpu(run)).program(model::step(sizes, &declared)?);
    let builder = builder.initialize(|rows, masters| match rows.weight {
        "gain" => masters.fill(1.0),
        _ => initial::normal(1, 0.02)(rows, masters),
    });
    let mut session = builder.start_cpu(grid.ranks).await?;
    let mut losses = Vec::new();
    for step in 0..arguments.steps {
        session.set_learning_rate(1e-3)?;
        let own = sizes.own_tokens() / sizes.sequence;
        for rank in 0..grid.ranks as usize {
            // Ranks of a group are numbered one after the other and share its texts, so each has its own.
            let texts = (0..own).map(|at| text(step, rank * own + at, sizes.sequence));
            let (tokens, targets): (Vec<_>, Vec<_>) = texts.unzip();
            session.write_input("train", RankId::at(rank), "tokens", &tokens.concat())?;
            session.write_input("train", RankId::at(rank), "targets", &targets.concat())?;
        }
        losses.push(session.step("train").await?.mean_output("loss")?);
    }
    session.close().await?;
    Ok(losses)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut all = Vec::new();
    for grid in &GRIDS {
        let losses = train(grid, &arguments).await?;
        let (first, last) =
            (losses.first().copied().unwrap_or_default(), losses.last().copied().unwrap_or_default());
        println!("{:18} loss {first:.5} -> {last:.5}", grid.name);
        all.push(losses);
    }
    let apart = |losses: &Vec<f32>| {
        let apart = losses.iter().zip(&all[0]).map(|(one, other)| (one - other).abs() / other.abs());
        apart.fold(0.0f32, f32::max)
    };
    for (grid, losses) in GRIDS.iter().zip(&all).skip(1) {
        println!("{:18} never further from one rank than {:.1e} of its loss", grid.name, apart(losses));
    }
    Ok(())
}
