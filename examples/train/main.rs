//! The main job: trains a byte-level decoder-only transformer on real text, on ranks of this machine or of
//! several processes.
//!
//! `cargo run --release --example train` takes the text files of this repository, NVFP4 weights, and up to four
//! GPUs where there are any, else four ranks on the CPU. `--help` explains the rest.

mod attention;
mod closure;
#[cfg(feature = "cuda")]
mod cuda;
mod data;
mod embedding;
mod forecast;
mod head;
mod host;
mod init;
mod mlp;
mod model;
mod ops;
mod outputs;
mod placement;
mod product;
mod program;
mod say;
mod schedule;
mod start;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpweft::config::Config as Settings;
use warpweft::config::{Backward, ByteSize, Capture, Prefetch, Scaling};
use warpweft::format::Format;
use warpweft::id::{ProcessId, RankId};
use warpweft::rendezvous::ProcessEnvironment;
use warpweft::session::{HostTime, Outcome, Session, StepReport};
use warpweft::trace::{Exposure, LineChart, Nanoseconds, Reference, Series};

use data::{Corpus, Draw, Split};
use forecast::Watch;
use model::{Config, VOCABULARY, parameters};
use outputs::Outputs;
use placement::{DeviceKind, Placement, Wish};
use say::{complain, say};
use start::Job;

/// Trains a small byte-level transformer whose weights are sharded over in-process ranks and travel
/// quantized, and shows what that costs: loss, exposed communication, bytes.
///
/// Ranks are threads of this process; with `--device cuda` each drives a GPU of its own. Started by torchrun,
/// mpirun, srun, or by hand with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and WARPWEFT_SECRET,
/// it is one process of several: each has the GPU of its LOCAL_RANK, or as many as `--ranks` says, and the
/// process of rank 0 reports. Every rank owns a slice of rows of each matrix: FP32 master, Adam moments, and
/// the slice in the chosen format. Before a layer computes, its rows are gathered from all ranks; after its
/// backward the gradient is summed back to their owners. `--depth` says how many uses ahead a gather may
/// start.
#[derive(Parser, Debug)]
#[command(name = "train", version)]
struct Arguments {
    /// Where the ranks run: GPUs if there are enough of them, else the CPU; or what you say.
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    device: DeviceKind,
    /// The GPU of each rank of this process, as in 0,1,2,3. Ranks may share one. [default: the first --ranks]
    #[arg(long, value_delimiter = ',', conflicts_with = "ranks")]
    devices: Option<Vec<u32>>,
    /// Ranks in this process; each runs its own share of the batch. [default: 4, on GPUs one for each up to 4]
    #[arg(long)]
    ranks: Option<u32>,
    /// Copies of the model, each sharded over its share of all ranks. [default: from --config]
    #[arg(long)]
    replicate: Option<u32>,
    /// Format of all matrices: f32, bf16, nvfp4_2d, fp8_block128_pow2, mxfp8, fp8_tensor_e4m3, …
    /// Rules in the configuration (`[[weights]]`) refine it by name.
    #[arg(long, default_value = "nvfp4_2d")]
    format: Format,
    /// Uses ahead of which a weight may be gathered; 0 gathers on demand. [default: from --config]
    #[arg(long)]
    depth: Option<u32>,
    /// Of the first steps, try plans in so many (6 to 20) and go on with the fastest. [default: from --config]
    #[arg(long)]
    tune: Option<u32>,
    /// Training steps.
    #[arg(long, default_value_t = 300)]
    steps: u32,
    /// Configuration file. [default: examples/train/train.toml]
    #[arg(long)]
    config: Option<PathBuf>,
    /// Say at the end what a step was expected to take on this machine, a preset or a file of
    /// `warpweft calibrate`; with `prefetch.policy = "auto"` the planner counts with it.
    #[arg(long, value_name = "PRESET|FILE")]
    cluster: Option<String>,
    /// Take the scales of per-tensor FP8 weights from the amaxes of earlier steps (quantize.scaling).
    #[arg(long)]
    delayed: bool,
    /// Record the step once and replay it.
    #[arg(long)]
    capture: bool,
    /// Keep gathered weights for backward instead of gathering them again.
    #[arg(long)]
    keep: bool,
    /// Run the backend under the checking layer.
    #[arg(long)]
    check: bool,
    /// Write a chrome trace of a few steps to this file.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Seed of weights and batches.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the loss curve.
    #[arg(long, default_value = "target/train")]
    out: PathBuf,
    /// Write the loss of every step to this file, one a line, with all its digits.
    #[arg(long)]
    losses: Option<PathBuf>,
    /// Print the plan of the training step and stop; no file is written.
    #[arg(long)]
    plan: bool,
    /// Text to train on: files, or folders of .md, .rs and .toml files. [default: this repository]
    text: Vec<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain!("train: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let settings = settings(&arguments, root)?;
    let config = Config::default().check()?;
    let text = if arguments.text.is_empty() { vec![root.to_owned()] } else { arguments.text.clone() };
    let corpus = Corpus::read(&text, config.sequence)?;

    let declared = settings.apply_weight_rules(&program::weights(&config, arguments.format)?)?;
    let declared = program::declare(&config, &declared)?;
    let started = ProcessEnvironment::of_this_process()?;
    if let (None, Some(processes)) = (&started, start::world_without_rank()) {
        complain!(
            "train: WORLD_SIZE is {processes}, but RANK is not set, so this process trains alone; set RANK, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for each process, or leave WORLD_SIZE out"
        );
    }
    let process = started.filter(|process| process.processes > 1);
    let wish = Wish {
        device: arguments.device,
        ranks: arguments.ranks,
        gpus: arguments.devices.clone(),
        process: process.as_ref().map(|process| process.local),
    };
    let placement = placement::place(&wish, start::usable_gpus)?;
    // The process of rank 0 writes, and learns before it starts whether it can.
    let writes = process.as_ref().is_none_or(|process| process.process == ProcessId::new(0));
    let outputs = (writes && !arguments.plan)
        .then(|| Outputs::prepare(&arguments.out, arguments.losses.as_deref()))
        .transpose()?;
    let job = Job { settings: &settings, config: &config, declared: &declared, seed: arguments.seed };
    let mut session = start::start(job, &placement, process.as_ref()).await?;
    let (ranks, reports) = (session.ranks(), session.own_ranks().any(|rank| rank == RankId::new(0)));
    if arguments.plan {
        if reports {
            say!("{}", session.plan("train")?);
        }
        return Ok(session.close().await?);
    }
    if reports {
        introduce(&arguments, &settings, &config, &corpus, &session, &placement)?;
    }
    let run = train(&arguments, reports, &settings, &config, &corpus, &mut session).await?;
    let held_out = evaluate(&config, &corpus, &mut session).await?;
    session.close().await?;
    if let Some(outputs) = &outputs {
        conclude(&corpus, &run, held_out);
        leave(outputs, &settings, &run, &picture(&arguments, ranks, &corpus, &run.losses))?;
    }
    Ok(())
}

/// The configuration file with the flags on top.
fn settings(arguments: &Arguments, root: &Path) -> Result<Settings, Box<dyn Error>> {
    let own = root.join("examples/train/train.toml");
    let mut settings = Settings::load(Some(arguments.config.as_deref().unwrap_or(&own)))?;
    if let Some(depth) = arguments.depth {
        settings.prefetch = settings.prefetch.started_as(Prefetch::depth(depth));
    }
    if let Some(cluster) = &arguments.cluster {
        // A name that is none is refused before anything runs.
        forecast::cluster(cluster)?;
        settings.prefetch.cluster.clone_from(cluster);
    }
    if let Some(replicate) = arguments.replicate {
        settings.mesh.replicate = replicate;
    }
    if let Some(steps) = arguments.tune {
        settings.tune.steps = steps;
    }
    if arguments.capture {
        settings.capture = Capture::Step;
    }
    if arguments.delayed {
        settings.quantize.scaling = Scaling::Delayed;
    }
    if arguments.keep {
        settings.backward = Backward::Keep;
    }
    settings.check |= arguments.check;
    if let Some(path) = &arguments.trace {
        settings.trace.enabled = true;
        settings.trace.path = path.display().to_string();
    }
    if arguments.plan {
        // Nothing runs, and an older trace stays what it is.
        settings.trace.enabled = false;
    }
    settings.validate()?;
    Ok(settings)
}

/// What is about to run, before it runs.
fn introduce(
    arguments: &Arguments,
    settings: &Settings,
    config: &Config,
    corpus: &Corpus,
    session: &Session,
    placement: &Placement,
) -> Result<(), Box<dyn Error>> {
    let elements: usize = parameters(config).iter().map(|parameter| parameter.rows * parameter.cols).sum();
    say!(
        "text      {} bytes of {} files; unigram entropy {:.3} nats, uniform {:.3} nats (ln 256)",
        corpus.len(),
        corpus.files(),
        corpus.unigram_entropy(),
        (VOCABULARY as f64).ln(),
    );
    say!(
        "model     {} layers, width {}, {} parameters in {}, batch {} × {} bytes on each of {} ranks",
        config.layers,
        config.width,
        elements,
        arguments.format,
        config.batch,
        config.sequence,
        session.ranks(),
    );
    if let Ok(plan) = session.plan("train") {
        let bounds = &plan.bounds;
        say!(
            "plan      {} tasks, {}; {} transient (live bound {}), {} resident, {} received per step, per rank",
            plan.tasks.len(),
            settings.prefetch,
            size(bounds.transient_bytes),
            size(bounds.live_bytes),
            size(bounds.resident_bytes),
            size(bounds.wire_bytes),
        );
    }
    say!("device    {}", session.device());
    if session.landing_bytes() > 0 {
        say!("landing   {} beside each arena, for what peers send", size(session.landing_bytes()));
    }
    match placement {
        Placement::Cpu { instead: Some(reason), .. } => say!("          on the CPU, because {reason}"),
        Placement::Cpu { instead: None, .. } => {}
        #[cfg(feature = "cuda")]
        Placement::Cuda { gpus } => {
            let elsewhere = match session.ranks() as usize - session.own_ranks().len() {
                0 => String::new(),
                others => format!("; {others} in other processes"),
            };
            say!("          ranks on {}{elsewhere}", cuda::names(gpus)?.join(", "));
        }
        #[cfg(not(feature = "cuda"))]
        Placement::Cuda { .. } => {}
    }
    say!(
        "settings\n{}",
        settings.effective().lines().map(|line| format!("          {line}\n")).collect::<String>()
    );
    Ok(())
}

/// So many of the last steps say where the host's time went.
const SPLIT: u32 = 20;

/// What training left behind.
struct Run {
    losses: Vec<f32>,
    exposure: Exposure,
    stepping: Duration,
    skipped: u32,
    last: Option<StepReport>,
    /// Where the host's time of the last steps went.
    hosts: Vec<HostTime>,
    /// What a step was expected to take, if a cluster was named.
    forecast: Option<String>,
    /// What was tried for a plan, if anything was.
    tuning: Option<String>,
}

impl Run {
    /// Whether the device measured its tasks; GPUs do for a trace only.
    fn is_timed(&self) -> bool {
        self.exposure.step > Nanoseconds::ZERO
    }
}

/// The step that a log tells of first, unless steps are slow.
const EARLY: u32 = 10;

async fn train(
    arguments: &Arguments,
    reports: bool,
    settings: &Settings,
    config: &Config,
    corpus: &Corpus,
    session: &mut Session,
) -> Result<Run, Box<dyn Error>> {
    let bar = if reports { ProgressBar::new(u64::from(arguments.steps)) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}  {elapsed} (left {eta})")?);
    let mut run = Run {
        losses: Vec::new(),
        exposure: Exposure::default(),
        stepping: Duration::ZERO,
        skipped: 0,
        hosts: Vec::new(),
        last: None,
        forecast: None,
        tuning: None,
    };
    let mut watch = arguments.cluster.as_deref().map(forecast::cluster).transpose()?.map(Watch::new);
    let (mut tokens, mut targets) = (vec![0u8; config.tokens()], vec![0u8; config.tokens()]);
    let mut told = Instant::now();
    for step in 0..arguments.steps {
        for rank in session.own_ranks() {
            let draw =
                Draw { split: Split::Training, seed: arguments.seed, step: step.into(), rank: rank.index() };
            corpus.batch(config, draw, &mut tokens, &mut targets);
            session.write_input("train", rank, "tokens", &tokens)?;
            session.write_input("train", rank, "targets", &targets)?;
        }
        session.set_learning_rate(settings.optimizer.lr as f32 * schedule::factor(step, arguments.steps))?;
        session.split_host_time(step.saturating_add(SPLIT) >= arguments.steps);
        let report = session.step("train").await?;
        run.hosts.extend(report.host);
        if let Some(watch) = &mut watch {
            watch.add(session, &report);
        }
        run.losses.push(report.mean_output("loss")?);
        run.exposure = [run.exposure, report.exposure].into_iter().sum();
        run.stepping += report.duration;
        run.skipped += u32::from(!matches!(report.outcome, Outcome::Updated { .. }));
        for refusal in report.not_recorded.iter().filter(|_| reports) {
            bar.suspend(|| say!("note      steps are not recorded: {}: {}", refusal.rank, refusal.reason));
        }
        let loss = schedule::recent(&run.losses);
        let mut message = format!("loss {loss:.3}");
        if run.is_timed() {
            message += &format!("  exposed {:4.1} %", 100.0 * run.exposure.fraction());
        }
        // A log shows early that there are steps, and then now and then.
        if reports && bar.is_hidden() && (step + 1 == EARLY || told.elapsed() > Duration::from_secs(5)) {
            say!("step {:4}  {message}", step + 1);
            told = Instant::now();
        }
        bar.set_message(message);
        bar.inc(1);
        run.last = Some(report);
    }
    bar.finish();
    run.hosts.sort_by_key(|host| host.issue.busy());
    run.forecast = watch.map(|watch| watch.conclude(settings, session)).transpose()?;
    run.tuning = session.tuning().map(ToString::to_string);
    Ok(run)
}

/// Mean loss over held-out text, with the weights as they are quantized now.
async fn evaluate(config: &Config, corpus: &Corpus, session: &mut Session) -> Result<f32, Box<dyn Error>> {
    const BATCHES: u64 = 4;
    let (mut tokens, mut targets) = (vec![0u8; config.tokens()], vec![0u8; config.tokens()]);
    let mut sum = 0.0;
    for step in 0..BATCHES {
        for rank in session.own_ranks() {
            let draw = Draw { split: Split::HeldOut, seed: 0, step, rank: rank.index() };
            corpus.batch(config, draw, &mut tokens, &mut targets);
            session.write_input("evaluate", rank, "tokens", &tokens)?;
            session.write_input("evaluate", rank, "targets", &targets)?;
        }
        sum += session.step("evaluate").await?.mean_output("loss")?;
    }
    Ok(sum / BATCHES as f32)
}

/// The closing summary.
fn conclude(corpus: &Corpus, run: &Run, held_out: f32) {
    let (Some(first), Some(report)) = (run.losses.first(), &run.last) else { return };
    let last = schedule::recent(&run.losses);
    let share = |part: Nanoseconds| 100.0 * part.fraction_of(run.exposure.step);
    say!(
        "\nloss      {first:.3} → {last:.3} nats per byte (mean of the last steps); held-out text {held_out:.3}"
    );
    say!("          unigram entropy {:.3}, ln 256 {:.3}", corpus.unigram_entropy(), (VOCABULARY as f64).ln());
    let step = run.stepping.as_secs_f64() * 1e3 / run.losses.len() as f64;
    if run.is_timed() {
        say!(
            "time      {step:.1} ms per step; compute {:.1} %, exposed communication {:.1} %, waiting for ranks {:.1} %, idle {:.1} %",
            share(run.exposure.compute),
            share(run.exposure.exposed),
            share(run.exposure.skew),
            share(run.exposure.idle),
        );
    } else {
        say!("time      {step:.1} ms per step; --trace FILE tells where it goes");
    }
    if let Some(host) = run.hosts.get(run.hosts.len() / 2) {
        say!("host      {host}");
    }
    if let Some(forecast) = &run.forecast {
        say!("forecast  {forecast}");
    }
    if let Some(overlap) = run.exposure.overlap() {
        say!("overlap   {:.1} % of all communication ran behind compute", 100.0 * overlap);
    }
    say!(
        "bytes     {} received per step and rank; arena {} transient, {} live at most, {} resident",
        size(report.bounds.wire_bytes),
        size(report.bounds.transient_bytes),
        size(report.bounds.live_bytes),
        size(report.bounds.resident_bytes),
    );
    if report.bounds.columnwise_saved_bytes > 0 {
        let saved = size(report.bounds.columnwise_saved_bytes);
        say!("          columnwise planes made on demand save {saved} of arena over keeping them");
    }
    if let Some(trials) = &run.tuning {
        say!("tuning\n{}", trials.lines().map(|line| format!("          {line}\n")).collect::<String>());
    }
    if run.skipped > 0 {
        say!("skipped   {} steps, for gradients that were not finite", run.skipped);
    }
}

/// Writes the files and says where they are.
fn leave(outputs: &Outputs, settings: &Settings, run: &Run, picture: &str) -> Result<(), String> {
    if run.losses.is_empty() {
        return Ok(());
    }
    outputs.write(picture, &run.losses)?;
    say!("pictures  {}", outputs.curve().display());
    if settings.trace.enabled {
        say!("trace     {}  (open in https://ui.perfetto.dev or chrome://tracing)", settings.trace.path);
    }
    Ok(())
}

fn picture(arguments: &Arguments, ranks: u32, corpus: &Corpus, losses: &[f32]) -> String {
    let points = losses.iter().enumerate().map(|(step, loss)| (step as f64, f64::from(*loss))).collect();
    LineChart {
        title: format!("Loss of the example, {} weights on {} ranks", arguments.format, ranks),
        x_label: "training step".into(),
        y_label: "loss, nats per byte".into(),
        series: vec![Series { name: "training loss".into(), points }],
        references: vec![
            Reference { name: "unigram entropy".into(), value: corpus.unigram_entropy() },
            Reference { name: "ln 256".into(), value: (VOCABULARY as f64).ln() },
        ],
        ..LineChart::default()
    }
    .render()
}

/// Bytes as people read them.
fn size(bytes: usize) -> String {
    ByteSize::new(bytes as u64).rounded()
}
