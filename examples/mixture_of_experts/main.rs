//! Trains a mixture of experts on CPU ranks or GPUs, beside its unparallel self.
//!
//! `cargo run --release --example mixture_of_experts -- --help`
//!
//! A router sends every token to two of four experts. One rank has all of them; four ranks have one each (`ep 4`), or
//! two each, sharded over two ranks (`ep 2 × ep_shard 2`) or as copies in two replicas. Tokens travel to the ranks of
//! their experts and back (dropless dispatch and combine). Losses are the same but for the order in which sums are
//! rounded. A last run has a capacity that is too small for some steps: these are skipped on all ranks, with the
//! reason, and training goes on.
//!
//! With `--device cuda` the ranks have a GPU each or, where there are too few, share the first. One rank on the CPU
//! then is what all others are compared with.

#[path = "../train/ops.rs"]
#[allow(dead_code, reason = "the job trains with more of them")]
mod ops;
#[path = "../shared/print.rs"]
mod print;
#[path = "../train/product.rs"]
#[allow(dead_code, reason = "the job multiplies strided matrices too")]
mod product;

mod closure;
mod cuda;
mod experts;
mod model;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use warpweft::compute::{Seat, Surface};
use warpweft::config::Capture;
use warpweft::prelude::*;
use warpweft::session::{SessionBuilder, initial};

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
    /// Where the ranks compute
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    /// Steps of the optimizer
    #[arg(long, default_value_t = 100)]
    steps: usize,
    /// Rows of a slot in the last run: tokens of a rank for one expert
    #[arg(long, default_value_t = 28)]
    capacity: usize,
}

/// Where ranks compute.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Device {
    /// On threads of this machine
    Cpu,
    /// On a GPU each, or all on the first
    Cuda,
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

/// Starts the ranks of a grid.
async fn start(
    device: Device,
    grid: &Grid,
    sizes: Sizes,
    mut config: Config,
) -> Result<Session, Box<dyn Error>> {
    let declared = model::model(sizes)?;
    let program = model::step(sizes, &declared)?;
    match device {
        Device::Cpu => {
            let run = move |call: &Call, context: &Context<'_>| closure::run(sizes, call, context);
            let builder = Session::builder(config, move |_| on_cpu(run));
            Ok(dressed(builder, program).start_cpu(grid.ranks).await?)
        }
        Device::Cuda => {
            // Steps of ranks that share a GPU are issued all the same.
            config.capture = Capture::Step;
            let gpus = cuda::place(grid.ranks)?;
            let devices = gpus.iter().map(|(gpu, _)| DeviceOrdinal::new(*gpu)).collect();
            let closure = move |seat: Seat<DeviceOrdinal>| {
                let (gpu, kernels) = &gpus[seat.rank.index()];
                cuda::Gpu::new(sizes, *gpu, kernels).map_err(ComputeError::closure)
            };
            let builder = Session::try_builder(config, closure);
            Ok(dressed(builder, program).start_cuda(devices).await?)
        }
    }
}

fn dressed<S: Surface + 'static>(builder: SessionBuilder<S>, program: StepProgram) -> SessionBuilder<S> {
    builder.program(program).initialize(initial::normal(1, 0.2))
}

async fn train(
    device: Device,
    grid: &Grid,
    steps: usize,
    capacity: Option<usize>,
) -> Result<Run, Box<dyn Error>> {
    let sizes = sizes(grid, capacity);
    let mut config = Config::default();
    (config.mesh.dp_replicate, config.mesh.ep) = (Some(grid.replicas), grid.ep);
    // Adam divides a gradient by its own size: where that is rounding alone, so would the update be.
    config.optimizer.eps = 1e-4;
    let mut session = start(device, grid, sizes, config).await?;
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
async fn main() -> ExitCode {
    match run(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mixture_of_experts: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { device, steps, capacity } = arguments;
    let mut runs: Vec<_> = GRIDS.iter().map(|grid| (grid.name, device, grid)).collect();
    if device == Device::Cuda {
        cuda::gpus().map_err(|failure| format!("--device cuda cannot be followed: {failure}"))?;
        runs.insert(0, ("one CPU rank", Device::Cpu, &GRIDS[0]));
    }
    let mut all = Vec::new();
    for (name, device, grid) in runs {
        let losses = train(device, grid, steps, None).await?.losses;
        let (first, last) = edges(&losses);
        println!("{name:18} loss {first:.5} -> {last:.5}");
        all.push((name, losses));
    }
    for (name, losses) in all.iter().skip(1) {
        let apart = losses.iter().zip(&all[0].1).map(|(one, other)| (one - other).abs() / other.abs());
        let apart = apart.fold(0.0f32, f32::max);
        println!("{name:18} never further from {} than {apart:.1e} of its loss", all[0].0);
    }
    let run = train(device, &GRIDS[1], steps, Some(capacity)).await?;
    let (first, last) = edges(&run.losses);
    let skipped = run.skipped.len();
    println!("capacity {capacity:9} loss {first:.5} -> {last:.5}, {skipped} of {steps} steps skipped");
    if let Some(error) = run.skipped.first() {
        println!("the first of them: {error}");
    }
    Ok(())
}
