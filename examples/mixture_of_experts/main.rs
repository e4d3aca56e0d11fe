//! Trains a mixture of experts on CPU ranks, beside its unparallel self.
//!
//! `cargo run --release --example mixture_of_experts -- --help`
//!
//! A router sends every token to two of four experts. One rank has all of them; four ranks have one each (`ep 4`), or
//! two each, sharded over two ranks (`ep 2 × ep_shard 2`) or as copies in two replicas. Tokens travel to the ranks of
//! their experts and back (dropless dispatch and combine). Losses are the same but for the order in which sums are
//! rounded. A last run has a capacity that is too small for some steps: these are skipped on all ranks, with the
//! reason, and training goes on.

#[path = "../train/ops.rs"]
#[allow(dead_code, reason = "the job trains with more of them")]
mod ops;
#[path = "../shared/print.rs"]
mod print;
#[path = "../train/product.rs"]
#[allow(dead_code, reason = "the job multiplies strided matrices too")]
mod product;

mod closure;
mod experts;
mod model;

use std::error::Error;

use clap::Parser;
use warpweft::prelude::*;
use warpweft::session::initial;

use model::Sizes;
use print::println;

pub(crate) type Context<'a> = ComputeContext<'a, CpuSurface>;

const TEXT: &[u8] = include_bytes!("../../LICENSE-APACHE");
/// Tokens of a batch, of all ranks together.
const TOKENS: usize = 128;

/// Trains one mixture of experts on several meshes and compares the losses.
#[derive(Parser)]
#[command(name = "mixture_of_experts")]
struct Arguments {
    /// Steps of the optimizer
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Rows of a slot in the last run: tokens of a rank for one expert
    #[arg(long, default_value_t = 28)]
    capacity: usize,
}

/// A mesh to train on.
struct Grid {
    name: &'static str,
    ranks: u32,
    replicas: u32,
    ep: u32,
}

const GRIDS: [Grid; 4] = [
    Grid { name: "one rank", ranks: 1, replicas: 1, ep: 1 },
    Grid { name: "ep 4", ranks: 4, replicas: 1, ep: 4 },
    Grid { name: "ep 2 × ep_shard 2", ranks: 4, replicas: 1, ep: 2 },
    Grid { name: "ep 2 × 2 replicas", ranks: 4, replicas: 2, ep: 2 },
];

/// Without a capacity, all tokens of a rank may go to one expert.
fn sizes(grid: &Grid, capacity: Option<usize>) -> Sizes {
    let tokens = TOKENS / grid.ranks as usize;
    Sizes { ep: grid.ep as usize, tokens, capacity: capacity.unwrap_or(tokens) }
}

/// What one run saw.
#[derive(Default)]
struct Run {
    /// Of every step that was not skipped.
    losses: Vec<f32>,
    /// Why steps were.
    skipped: Vec<SessionError>,
}

async fn train(grid: &Grid, steps: usize, capacity: Option<usize>) -> Result<Run, Box<dyn Error>> {
    let sizes = sizes(grid, capacity);
    let mut config = Config::default();
    (config.mesh.dp_replicate, config.mesh.ep) = (Some(grid.replicas), grid.ep);
    // Adam divides a gradient by its own size: where that is rounding alone, so would the update be.
    config.optimizer.eps = 1e-4;
    let declared = model::model(sizes)?;
    let run = move |call: &Call, context: &Context<'_>| closure::run(sizes, call, context);
    let builder = Session::builder(config, move |_| on_cpu(run)).program(model::step(sizes, &declared)?);
    let mut session = builder.initialize(initial::normal(1, 0.2)).start_cpu(grid.ranks).await?;
    let mut seen = Run::default();
    for step in 0..steps {
        session.set_learning_rate(3e-3)?;
        let place = (step as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
        let place = place as usize % (TEXT.len() - TOKENS - 1);
        for rank in 0..grid.ranks as usize {
            let own = |first: usize| &TEXT[first + rank * sizes.tokens..][..sizes.tokens];
            session.write_input("train", RankId::at(rank), "tokens", own(place))?;
            session.write_input("train", RankId::at(rank), "targets", own(place + 1))?;
        }
        match session.step("train").await {
            Ok(report) => seen.losses.push(report.mean_output("loss")?),
            Err(error @ SessionError::Closure { panicked: None, .. }) => seen.skipped.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    session.close().await?;
    Ok(seen)
}

/// The first loss and the last.
fn edges(losses: &[f32]) -> (f32, f32) {
    (losses.first().copied().unwrap_or_default(), losses.last().copied().unwrap_or_default())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut all = Vec::new();
    for grid in &GRIDS {
        let run = train(grid, arguments.steps, None).await?;
        let (first, last) = edges(&run.losses);
        println!("{:18} loss {first:.5} -> {last:.5}", grid.name);
        all.push(run.losses);
    }
    for (grid, losses) in GRIDS.iter().zip(&all).skip(1) {
        let apart = losses.iter().zip(&all[0]).map(|(one, other)| (one - other).abs() / other.abs());
        let apart = apart.fold(0.0f32, f32::max);
        println!("{:18} never further from one rank than {apart:.1e} of its loss", grid.name);
    }
    let run = train(&GRIDS[1], arguments.steps, Some(arguments.capacity)).await?;
    let (first, last) = edges(&run.losses);
    let (skipped, steps) = (run.skipped.len(), arguments.steps);
    println!(
        "capacity {:9} loss {first:.5} -> {last:.5}, {skipped} of {steps} steps skipped",
        arguments.capacity
    );
    if let Some(error) = run.skipped.first() {
        println!("the first of them: {error}");
    }
    Ok(())
}
