//! The printed summary of a run: before it the settings, after it the outcome and the files.
//!
//! Law: nothing is decided here; a summary only tells, and writes what [`Outputs`] was prepared for.

use std::error::Error;

use warpweft::config::ByteSize;
use warpweft::config::Config as Settings;
use warpweft::model::StepProgram;
use warpweft::session::Session;
use warpweft::trace::{LineChart, Reference, Series};
use warpweft_session::session::columnwise_saving;

use crate::arguments::Arguments;
use crate::cuda;
use crate::data::Corpus;
use crate::model::{Config, VOCABULARY, parameters};
use crate::outputs::{Outputs, Trace};
use crate::placement::Placement;
use crate::say::say;
use crate::{Run, schedule};

/// The steps that a trace is to hold.
struct Window {
    /// The first, from 0.
    first: usize,
    /// How many.
    wanted: usize,
}

impl Window {
    fn of(settings: &Settings) -> Self {
        Self { first: settings.trace.first_step as usize, wanted: settings.trace.steps as usize }
    }
}

/// What is about to run, before it runs.
pub(crate) fn introduce(
    arguments: &Arguments,
    settings: &Settings,
    config: &Config,
    corpus: &Corpus,
    program: &StepProgram,
    session: &Session,
    placement: &Placement,
) -> Result<(), Box<dyn Error>> {
    let elements: usize = parameters(config).iter().map(|parameter| parameter.rows * parameter.cols).sum();
    say!(
        "text      {} bytes of {}; unigram entropy {:.3} nats, uniform {:.3} nats (ln 256)",
        corpus.len(),
        count(corpus.files().len(), "file"),
        corpus.unigram_entropy(),
        (VOCABULARY as f64).ln(),
    );
    say!(
        "model     {} layers, width {}, {} parameters in {}, batch {} × {} bytes on {}{}{}",
        config.layers,
        config.width,
        elements,
        arguments.format,
        config.batch,
        config.sequence,
        if session.ranks() == 1 { "" } else { "each of " },
        count(session.ranks() as usize, "rank"),
        if arguments.accumulate == 1 { String::new() } else { format!(", {} a step", arguments.accumulate) },
    );
    if let Ok(plan) = session.plan("train") {
        let bounds = &plan.bounds;
        say!(
            "plan      {} tasks, {}; {} transient (live bound {}), {} resident, {} received per {}, per rank",
            plan.tasks.len(),
            settings.prefetch,
            size(bounds.transient_bytes),
            size(bounds.live_bytes),
            size(bounds.resident_bytes),
            size(bounds.wire_bytes),
            unit(arguments),
        );
        if let Some(saved) = columnwise_saving(plan, program, settings, None)?.filter(|saved| *saved > 0) {
            say!("          columnwise planes on demand save {} transient over keeping them", size(saved));
        }
    }
    say!("device    {}", session.device());
    if session.receive_buffer_bytes() > 0 {
        say!("receive   {} beside each arena, for what peers send", size(session.receive_buffer_bytes()));
    }
    match placement {
        Placement::Cpu { instead: Some(reason), .. } => say!("          on the CPU, because {reason}"),
        Placement::Cpu { instead: None, .. } => {}
        Placement::Cuda { gpus } => {
            let elsewhere = match session.ranks() as usize - session.own_ranks().len() {
                0 => String::new(),
                others => format!("; {others} in other processes"),
            };
            say!("          ranks on {}{elsewhere}", cuda::names(gpus)?.join(", "));
        }
    }
    say!(
        "settings\n{}",
        settings.effective().lines().map(|line| format!("          {line}\n")).collect::<String>()
    );
    Ok(())
}

/// What one step of the session is to this run.
fn unit(arguments: &Arguments) -> &'static str {
    if arguments.accumulate == 1 { "step" } else { "batch" }
}

/// Says of a trace that will lack steps so now, while another run costs nothing yet.
pub(crate) fn note_short_trace(arguments: &Arguments, settings: &Settings, steps_before: u32) {
    if arguments.trace(settings).is_some() {
        let steps = (arguments.steps - steps_before) as usize * arguments.accumulate as usize;
        let Window { first, wanted } = Window::of(settings);
        if steps < first + wanted {
            let requested = count(wanted, "step");
            say!(
                "note      the trace will lack steps: {requested} from step {first} on were requested, counted from 0, and training has {steps}; take more --steps, or lower trace.first_step"
            );
        }
    }
}

/// The closing summary.
pub(crate) fn conclude(arguments: &Arguments, corpus: &Corpus, run: &Run, held_out: Option<f32>) {
    if run.stopped {
        let done = run.steps_before as usize + run.losses.len();
        say!(
            "\nstopped   by an interrupt after {done} of {}; what was done follows",
            count(arguments.steps as usize, "step")
        );
    }
    let (Some(first), Some(report)) = (run.losses.first(), &run.last) else { return };
    let (last, steps) = schedule::recent(&run.losses);
    let averaged = if steps == 1 {
        "that of the last step".to_owned()
    } else {
        format!("mean of the last {steps} steps")
    };
    let (times, whole) = (&run.exposure, run.exposure.step);
    let held_out = held_out.map_or_else(String::new, |loss| format!("; held-out text {loss:.3}"));
    say!("\nloss      {first:.3} → {last:.3} nats per byte ({averaged}){held_out}");
    say!("          unigram entropy {:.3}, ln 256 {:.3}", corpus.unigram_entropy(), (VOCABULARY as f64).ln());
    let step = run.stepping.as_secs_f64() * 1e3 / run.losses.len() as f64;
    if run.is_timed() {
        say!(
            "time      {step:.1} ms per step; compute {:.1} %, exposed communication {:.1} %, waiting for ranks {:.1} %, idle {:.1} %",
            100.0 * times.compute.fraction_of(whole),
            100.0 * times.exposed.fraction_of(whole),
            100.0 * times.skew.fraction_of(whole),
            100.0 * times.idle.fraction_of(whole),
        );
    } else {
        say!("time      {step:.1} ms per step; --trace FILE tells where it goes");
    }
    if let Some(host) = run.hosts.get(run.hosts.len() / 2) {
        // Without a driver, lanes are threads beside the one that issues, which waits for a core in between.
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let waits = if host.issue.calls == 0 {
            format!(", waiting for one of {cores} cores included")
        } else {
            String::new()
        };
        say!("host      {host}{waits}");
    }
    if let Some(forecast) = &run.forecast {
        say!("forecast  {forecast}");
    }
    if let Some(overlap) = run.exposure.overlap() {
        say!("overlap   {:.1} % of all communication ran behind compute", 100.0 * overlap);
    }
    say!(
        "bytes     {} received per {} and rank; arena {} transient, {} live at most, {} resident",
        size(report.bounds.wire_bytes),
        unit(arguments),
        size(report.bounds.transient_bytes),
        size(report.bounds.live_bytes),
        size(report.bounds.resident_bytes),
    );
    if let Some(trials) = &run.tuning {
        say!("tuning\n{}", trials.lines().map(|line| format!("          {line}\n")).collect::<String>());
    }
    if run.skipped > 0 {
        let steps = count(run.skipped as usize, "step");
        say!("skipped   {steps}, for gradients that were not finite");
    }
}

/// Writes the files and says where they are. `trace` is the one that was written, if one was.
///
/// # Errors
/// As [`Outputs::write`].
pub(crate) fn leave(
    outputs: &Outputs,
    settings: &Settings,
    trace: Option<Trace<'_>>,
    run: &Run,
    picture: &str,
) -> Result<(), String> {
    let written = outputs.write(picture, &run.losses);
    if written.is_ok() {
        say!("pictures  {}", outputs.curve().display());
    }
    let Some(Trace { path, .. }) = trace else { return written };
    say!("trace     {}  (open in https://ui.perfetto.dev or chrome://tracing)", path.display());
    // Steps of the evaluation are numbered on, after those of training.
    let Window { first, wanted } = Window::of(settings);
    let steps = run.steps as usize;
    let traced = steps.saturating_sub(first);
    if traced < wanted {
        let holds = match traced {
            0 => "no training step".to_owned(),
            some if run.stopped => format!("only {}", count(some, "training step")),
            some => {
                format!("only {}, and what else it holds is the evaluation's", count(some, "training step"))
            }
        };
        let why = match run.stopped {
            true => " before it was interrupted",
            false => "; take more --steps, or lower trace.first_step",
        };
        let requested = count(wanted, "step");
        say!(
            "          holds {holds}: {requested} from step {first} on were requested, counted from 0, and training had {steps}{why}"
        );
    }
    written
}

/// The picture of the losses of the steps after `before`.
pub(crate) fn picture(
    arguments: &Arguments,
    ranks: u32,
    corpus: &Corpus,
    before: u32,
    losses: &[f32],
) -> String {
    let points = (before..).zip(losses).map(|(step, loss)| (f64::from(step), f64::from(*loss))).collect();
    LineChart {
        title: format!(
            "Loss of the example, {} weights on {}",
            arguments.format,
            count(ranks as usize, "rank")
        ),
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

/// So many of them, as in "1 rank" and "2 ranks".
fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
