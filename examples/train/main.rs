//! The main job: trains a byte-level decoder-only transformer on real text, on ranks of this machine or of
//! several processes.
//!
//! `cargo run --release --example train` takes the text files of this repository, NVFP4 weights, and up to four
//! GPUs where there are any, else four ranks on the CPU. `--help` explains the rest.

mod arguments;
mod attention;
mod closure;
mod cuda;
mod data;
mod embedding;
mod forecast;
mod head;
mod host;
mod init;
mod interrupt;
mod mlp;
mod model;
mod ops;
mod outputs;
mod placement;
mod product;
mod program;
mod saving;
mod say;
mod schedule;
mod start;
mod summary;

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use warpweft::config::Config as Settings;
use warpweft::id::RankId;
use warpweft::rendezvous::ProcessEnvironment;
use warpweft::session::{Outcome, Session, SessionError, StepReport, plan_program};
use warpweft_session::session::HostTime;
use warpweft_session::trace::Exposure;

use arguments::{Arguments, settings};
use data::{Corpus, Draw, Split};
use forecast::Watch;
use interrupt::Interrupt;
use model::Config;
use outputs::Outputs;
use placement::Wish;
use say::{complain, say};
use start::Job;
use summary::{conclude, introduce, leave, note_short_trace, picture};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let ended = run().await;
    if let Err(error) = &ended {
        complain!("train: {error}");
    }
    if let Some(reason) = say::unsaid() {
        complain!(
            "train: stdout could not be written ({reason}), so the output there is incomplete; send it where there is room"
        );
    }
    match ended {
        Ok(_) if say::unsaid().is_some() => ExitCode::FAILURE,
        Ok(code) => code,
        Err(_) => ExitCode::FAILURE,
    }
}

async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse();
    let settings = settings(&arguments)?;
    let steps_before = saving::steps_before(&arguments)?;
    let config = Config { batch: arguments.batch as usize, ..Config::default() }.check()?;
    let corpus = match arguments.text.as_slice() {
        [] => Corpus::of_repository(Path::new(env!("CARGO_MANIFEST_DIR")), config.sequence)?,
        text => Corpus::read(text, config.sequence)?,
    };

    let declared = settings.apply_weight_rules(&program::weights(&config, arguments.format)?)?;
    let mut declared = program::declare(&config, &declared)?;
    if arguments.accumulate > 1 {
        declared.train = declared.train.accumulating()?;
    }
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
    // One process alone knows how many ranks there are; several start, and so meet, to know.
    if arguments.plan && process.is_none() {
        say!("{}", plan_program(&declared.train, &settings, placement.ranks())?);
        return Ok(ExitCode::SUCCESS);
    }
    placement.check()?;
    let watch =
        |ranks| arguments.cluster.as_deref().map(|name| Watch::new(name, &settings, ranks)).transpose();
    if process.is_none() {
        watch(placement.ranks())?;
    }
    // The process of rank 0 writes, and learns before it starts whether it can.
    let writes = process.as_ref().is_none_or(|process| process.process.index() == 0);
    let prepare = || {
        let inputs = arguments.inputs(corpus.files());
        let inputs: Vec<_> = inputs.iter().map(|(name, path)| (*name, path.as_path())).collect();
        saving::prepare(&arguments, steps_before)?;
        Outputs::prepare(&arguments.out, arguments.losses.as_deref(), arguments.trace(&settings), &inputs)
    };
    let outputs = (writes && !arguments.plan).then(prepare).transpose()?;
    let job = Job { settings: &settings, config: &config, declared: &declared, seed: arguments.seed };
    let mut session = start::start(job, &placement, process.as_ref()).await?;
    let (ranks, reports) = (session.ranks(), session.own_ranks().any(|rank| rank == RankId::new(0)));
    if arguments.plan {
        if reports {
            say!("{}", session.plan("train")?);
        }
        session.close().await?;
        return Ok(ExitCode::SUCCESS);
    }
    if reports {
        introduce(&arguments, &settings, &config, &corpus, &declared.train, &session, &placement)?;
        note_short_trace(&arguments, &settings, steps_before);
    }
    let watch = watch(ranks)?;
    let interrupt = if process.is_none() { Interrupt::listen() } else { Interrupt::default() };
    let job = Training {
        reports,
        steps_before,
        settings: &settings,
        config: &config,
        corpus: &corpus,
        interrupt: interrupt.clone(),
    };
    saving::resume(&arguments, &mut session).await?;
    let mut run = train(&arguments, job, watch, &mut session).await?;
    let held_out = match run.stopped {
        true => None,
        false => Some(evaluate(&config, &corpus, &mut session).await?),
    };
    // Also one that came in the evaluation, which went on to its end.
    let code = if interrupt.came() { ExitCode::from(Interrupt::EXIT_CODE) } else { ExitCode::SUCCESS };
    // A trace that could not be written takes no result away, nor does a checkpoint that could not be kept.
    let closed = session.close().await;
    let is_traced = closed.is_ok();
    let ended = run.unsaved.take().map_or(closed, Err);
    let Some(outputs) = &outputs else { return Ok(ended.map(|()| code)?) };
    conclude(&arguments, &corpus, &run, held_out);
    let trace = arguments.trace(&settings).filter(|_| is_traced);
    let left = leave(
        outputs,
        &settings,
        trace,
        &run,
        &picture(&arguments, ranks, &corpus, run.steps_before, &run.losses),
    );
    match (left, ended) {
        (Err(left), Err(ended)) => Err(format!("{left}; and {ended}").into()),
        (left, ended) => Ok(left.map(|()| ended)?.map(|()| code)?),
    }
}

/// So many of the last steps say where the host's time went.
const SPLIT: u32 = 20;

/// What training left behind.
struct Run {
    /// Steps that were made before.
    steps_before: u32,
    /// Steps of the session, of which one of the optimizer may take several.
    steps: u32,
    losses: Vec<f32>,
    exposure: Exposure,
    stepping: Duration,
    skipped: u32,
    last: Option<StepReport>,
    /// Whether an interrupt ended it early.
    stopped: bool,
    /// Why a checkpoint was not kept, which ended the training.
    unsaved: Option<SessionError>,
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
        self.exposure != Exposure::default()
    }
}

/// The step that a log tells of first, unless steps are slow.
const EARLY: u32 = 10;

/// What training goes by, beside the flags.
struct Training<'a> {
    /// Does this process tell of it?
    reports: bool,
    /// Steps that were made before, according to the checkpoint that the run goes on from.
    steps_before: u32,
    settings: &'a Settings,
    config: &'a Config,
    corpus: &'a Corpus,
    interrupt: Interrupt,
}

async fn train(
    arguments: &Arguments,
    Training { reports, steps_before, settings, config, corpus, interrupt }: Training<'_>,
    mut watch: Option<Watch>,
    session: &mut Session,
) -> Result<Run, Box<dyn Error>> {
    let bar = if reports { ProgressBar::new(u64::from(arguments.steps)) } else { ProgressBar::hidden() };
    // Of a narrow terminal nothing is left to the bar.
    let template = "{wide_bar} {pos}/{len}  {msg}  {elapsed} (left {eta})";
    bar.set_style(ProgressStyle::with_template(template)?);
    let mut run = Run {
        steps_before,
        steps: 0,
        losses: Vec::new(),
        exposure: Exposure::default(),
        stepping: Duration::ZERO,
        skipped: 0,
        hosts: Vec::new(),
        last: None,
        stopped: false,
        unsaved: None,
        forecast: None,
        tuning: None,
    };
    let (mut tokens, mut targets) = (vec![0u8; config.tokens()], vec![0u8; config.tokens()]);
    let mut told = Instant::now();
    bar.set_position(u64::from(steps_before));
    'steps: for step in steps_before..arguments.steps {
        session.set_learning_rate(settings.optimizer.lr as f32 * schedule::factor(step, arguments.steps))?;
        session.split_host_time(step.saturating_add(SPLIT) >= arguments.steps);
        let mut losses = 0.0;
        let report = loop {
            if interrupt.came() {
                // A sum is in no checkpoint.
                session.discard_gradients().await?;
                run.stopped = true;
                break 'steps;
            }
            let batch = session.accumulated();
            let number = u64::from(step) * u64::from(arguments.accumulate) + u64::from(batch);
            for rank in session.own_ranks() {
                let draw =
                    Draw { split: Split::Training, seed: arguments.seed, step: number, rank: rank.index() };
                corpus.batch(config, draw, &mut tokens, &mut targets);
                session.write_input("train", rank, "tokens", &tokens)?;
                session.write_input("train", rank, "targets", &targets)?;
            }
            let is_last = batch + 1 == arguments.accumulate;
            let report =
                if is_last { session.step("train").await? } else { session.accumulate("train").await? };
            run.steps += 1;
            losses += report.mean_output("loss")?;
            run.exposure = [run.exposure, report.exposure].into_iter().sum();
            run.stepping += report.duration;
            run.hosts.extend(report.host);
            if reports && matches!(report.outcome, Outcome::Skipped { .. }) {
                let why = report.non_finite.as_ref().map_or_else(String::new, |made| format!(": {made}"));
                bar.suspend(|| say!("note      step {} was skipped{why}", report.step));
            }
            for refusal in report.not_captured.iter().filter(|_| reports) {
                bar.suspend(|| {
                    say!("note      steps are not captured: {}: {}", refusal.rank, refusal.reason)
                });
            }
            if is_last {
                break report;
            }
        };
        if let Some(watch) = &mut watch {
            watch.add(session, &report);
        }
        run.losses.push(losses / arguments.accumulate as f32);
        run.skipped += u32::from(!matches!(report.outcome, Outcome::Updated { .. }));
        let (loss, _) = schedule::recent(&run.losses);
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
        if let Err(error) = saving::save(arguments, step + 1, session).await {
            run.unsaved = Some(error);
            break;
        }
    }
    if run.stopped {
        bar.abandon()
    } else {
        bar.finish()
    }
    run.hosts.sort_by_key(|host| host.issue.busy());
    run.forecast = watch.map(|watch| watch.conclude(session));
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
