//! Plans, simulations and traces, for people.
//!
//! Law: nothing is planned or timed here. The plan is the session's, the times are the simulator's, the summary is the
//! trace room's; this file reads files, lays out numbers and writes files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

use super::text::{Align, Table, bytes, duration};
use crate::cluster::{Cluster, PRESETS, named};
use crate::config::{Config, ConfigError, Declared, Prefetch};
use crate::model::{DeclareError, Decoder, StepProgram};
use crate::plan::StepPlan;
use crate::session::{Session, SessionError, Simulation, plan_program};
use crate::trace::{Summary, Timeline, TimelinePicture, TraceError, read_trace, write_trace};

/// Width of pictures, pixels.
const WIDTH: u32 = 1400;

/// Why a plan, simulation or trace could not be shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A file declares what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The sizes of a model do not go together with its formats.
    #[error("`{}`: {source}", path.display())]
    Model {
        /// The model's file.
        path: PathBuf,
        /// What is refused.
        source: Box<DeclareError>,
    },
    /// No cluster of that name.
    #[error("`{name}` is neither a file nor a preset; the presets are {presets}")]
    NoCluster {
        /// What was asked for.
        name: String,
        /// The presets there are.
        presets: String,
    },
    /// The plan or the simulation was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The trace is not one of ours.
    #[error("`{}`: {source}", path.display())]
    Trace {
        /// The trace, or the file that should become one.
        path: PathBuf,
        /// What is wrong.
        source: TraceError,
    },
    /// The trace has no such step.
    #[error("`{}` has no step {step}; it has {has}", path.display())]
    NoStep {
        /// The trace.
        path: PathBuf,
        /// The step asked for.
        step: u64,
        /// The steps there are.
        has: String,
    },
    /// The file system refused.
    #[error("cannot {action} `{}`: {source}", path.display())]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// How much of a plan is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanView {
    /// Tasks by op, bytes by kind.
    Totals,
    /// Every task.
    Tasks,
    /// Graphviz source.
    Dot,
}

/// What to simulate, and what to write.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The decoder's file.
    pub model: PathBuf,
    /// The configuration's, if any.
    pub config: Option<PathBuf>,
    /// In place of the configuration's `prefetch.depth`.
    pub depth: Option<u32>,
    /// A preset, or a file.
    pub cluster: String,
    /// Number of ranks.
    pub ranks: u32,
    /// Steps to take the mean of.
    pub steps: u32,
    /// Where a chrome trace goes.
    pub trace: Option<PathBuf>,
    /// Where a picture goes.
    pub picture: Option<PathBuf>,
}

/// Plans one step of a decoder, and says what the plan is.
///
/// # Errors
/// [`ScheduleError`]: files that declare what cannot be, a plan that does not fit its budget.
pub fn plan_model(
    model: &Path,
    config: Option<&Path>,
    depth: Option<u32>,
    ranks: u32,
    view: PlanView,
) -> Result<String, ScheduleError> {
    let (_, program, config) = declare(model, config, depth)?;
    let plan = plan_program(&program, &config, ranks)?;
    Ok(match view {
        PlanView::Totals => totals(&plan),
        PlanView::Tasks => plan.to_string(),
        PlanView::Dot => plan.to_dot(),
    })
}

/// Simulates steps of a decoder, and says what they came to.
///
/// # Errors
/// As [`plan_model`]; a cluster that does not exist or is too small; files that cannot be written.
pub fn simulate_model(options: &SimulateOptions) -> Result<String, ScheduleError> {
    let (decoder, program, config) = declare(&options.model, options.config.as_deref(), options.depth)?;
    let cluster = cluster(&options.cluster)?;
    let simulation = Session::simulate(&program, &config, &cluster, options.ranks, options.steps)?;
    if let Some(path) = &options.trace {
        let file = File::create(path).map_err(refused("write", path))?;
        let written = write_trace(&simulation.timeline, None, BufWriter::new(file));
        written.map_err(|source| ScheduleError::Trace { path: path.clone(), source })?;
    }
    if let Some(path) = &options.picture {
        let step = duration(simulation.step);
        let exposed = 100.0 * simulation.exposure.fraction();
        let title = format!(
            "{}, {}, {}: {step} a step, {exposed:.1} % exposed",
            decoder.name, simulation.device, config.prefetch
        );
        draw(&simulation.timeline, title, path)?;
    }
    Ok(outcome(&decoder, &cluster, &config, &simulation))
}

/// Sums up a trace; draws one of its steps if a picture is asked for.
///
/// # Errors
/// [`ScheduleError::File`], [`ScheduleError::Trace`], [`ScheduleError::NoStep`].
pub fn show_trace(trace: &Path, picture: Option<&Path>, step: Option<u64>) -> Result<String, ScheduleError> {
    let file = File::open(trace).map_err(refused("read", trace))?;
    let wrong = |source| ScheduleError::Trace { path: trace.to_owned(), source };
    let read = read_trace(BufReader::new(file)).map_err(wrong)?;
    let summary = Summary { host: read.host, ..Summary::of(&read.timeline) };
    if let Some(picture) = picture {
        let mut timeline = read.timeline;
        let mut steps: Vec<u64> = timeline.slices.iter().map(|slice| slice.step).collect();
        steps.sort_unstable();
        steps.dedup();
        let step = step.or_else(|| steps.first().copied()).unwrap_or(0);
        if !steps.contains(&step) {
            let has = steps.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            let has = if has.is_empty() { "none".to_owned() } else { has };
            return Err(ScheduleError::NoStep { path: trace.to_owned(), step, has });
        }
        timeline.slices.retain(|slice| slice.step == step);
        timeline.arrows.clear();
        let name = trace.file_name().unwrap_or_default().to_string_lossy();
        draw(&timeline, format!("Step {step} of {name}"), picture)?;
    }
    Ok(summary.to_string())
}

fn declare(
    path: &Path,
    config: Option<&Path>,
    depth: Option<u32>,
) -> Result<(Decoder, StepProgram, Config), ScheduleError> {
    let mut config = Config::load(config)?;
    config.prefetch = depth.map_or(config.prefetch, Prefetch::depth);
    let decoder = Decoder::load(path)?;
    let wrong = |source| ScheduleError::Model { path: path.to_owned(), source: Box::new(source) };
    let model = config.apply_weight_rules(&decoder.model().map_err(wrong)?)?;
    let program = decoder.program(&model).map_err(wrong)?;
    Ok((decoder, program, config))
}

fn cluster(name: &str) -> Result<Cluster, ScheduleError> {
    let presets = || PRESETS.map(|(name, _)| name).join(", ");
    let missing = || ScheduleError::NoCluster { name: name.to_owned(), presets: presets() };
    Ok(named(name).ok_or_else(missing)??)
}

fn draw(timeline: &Timeline, title: String, path: &Path) -> Result<(), ScheduleError> {
    let drawn = TimelinePicture { title, width: WIDTH, window: None }.render(timeline);
    let drawn = drawn.map_err(|source| ScheduleError::Trace { path: path.to_owned(), source })?;
    std::fs::write(path, drawn).map_err(refused("write", path))
}

fn refused(action: &'static str, path: &Path) -> impl Fn(io::Error) -> ScheduleError {
    move |source| ScheduleError::File { action, path: path.to_owned(), source }
}

fn size(count: usize) -> String {
    bytes(count as u64)
}

fn totals(plan: &StepPlan) -> String {
    let mut ops: BTreeMap<(String, &str), (usize, usize)> = BTreeMap::new();
    for task in &plan.tasks {
        let lane = plan.lanes.get(task.lane.index()).map_or_else(String::new, |lane| lane.kind.to_string());
        let (tasks, wire) = ops.entry((lane, task.op.name())).or_default();
        *tasks += 1;
        *wire = wire.saturating_add(task.wire_bytes);
    }
    let mut table = Table::new([
        ("lane", Align::Left),
        ("op", Align::Left),
        ("tasks", Align::Right),
        ("received", Align::Right),
    ]);
    for ((lane, op), (tasks, wire)) in ops {
        let wire = if wire == 0 { String::new() } else { size(wire) };
        table.row([lane, op.to_owned(), tasks.to_string(), wire]);
    }
    let bounds = &plan.bounds;
    let collectives = plan.tasks.iter().filter(|task| task.collective.is_some()).count();
    let fences: usize = plan.tasks.iter().map(|task| task.waits.len()).sum();
    let mut text = table.to_string();
    let over = bounds.transient_bytes as f64 / bounds.live_bytes.max(1) as f64;
    let rows = [
        ("tasks", format!("{}, of which {collectives} collectives; {fences} fences", plan.tasks.len())),
        ("arena", format!("{} per rank", size(plan.arena.bytes()))),
        ("  resident", format!("{}: optimizer state, shards, staging", size(bounds.resident_bytes))),
        ("  transient", format!("{}, {over:.3} times the bound below", size(bounds.transient_bytes))),
        ("  live bound", format!("{} at {}", size(bounds.live_bytes), plan.describe(bounds.live_peak))),
        ("wire", format!("{} received per rank and step", size(bounds.wire_bytes))),
        ("fingerprint", format!("{:016x}, {} ranks", plan.fingerprint(), plan.weights.mesh.ranks())),
    ];
    text.push('\n');
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<13} {value}");
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn outcome(decoder: &Decoder, cluster: &Cluster, config: &Config, simulation: &Simulation) -> String {
    let Simulation { plan, step, exposure, busy, device, .. } = simulation;
    let share = |part: crate::trace::Nanoseconds| format!("{:.1} %", 100.0 * part.fraction_of(exposure.step));
    let rate = decoder.tokens as f64 / step.as_secs_f64();
    let arena = plan.arena.bytes();
    let of_gpu = 100.0 * arena as f64 / cluster.gpu.memory_bytes as f64;
    let overlap =
        exposure.overlap().map_or_else(String::new, |part| format!("; {:.1} % of it hidden", 100.0 * part));
    let rows = [
        ("model", format!("{}, {} tokens per rank, {}", decoder.name, decoder.tokens, config.prefetch)),
        ("machine", device.clone()),
        ("step", format!("{}; {rate:.0} tokens per second and GPU", duration(*step))),
        ("  compute", share(exposure.compute)),
        (
            "  exposed",
            format!("{} (communication {}{overlap})", share(exposure.exposed), share(exposure.communication)),
        ),
        ("  skew", share(exposure.skew)),
        ("  idle", share(exposure.idle)),
        (
            "memory",
            format!(
                "{} per rank, {of_gpu:.1} % of the GPU's; {} of it transient",
                size(arena),
                size(plan.bounds.transient_bytes)
            ),
        ),
        ("wire", format!("{} received per rank and step", size(plan.bounds.wire_bytes))),
    ];
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<10} {value}");
    }
    text.push('\n');
    let mut table = Table::new([("lane", Align::Left), ("busy", Align::Right), ("share", Align::Right)]);
    for (lane, time) in busy {
        let busy = duration(std::time::Duration::from_nanos(time.count()));
        table.row([lane.to_string(), busy, share(*time)]);
    }
    text + &table.to_string()
}
