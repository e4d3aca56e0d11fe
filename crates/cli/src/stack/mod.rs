//! `warpweft bench stack`: a decoder-shaped stack of linear layers on this machine's GPUs, measured against
//! its own products alone.
//!
//! A block holds the four matrices of a decoder's block without attention: qkv `[3H, H]`, proj `[H, H]`, fc1
//! `[F, H]` and fc2 `[H, F]`;
//!
//! ```text
//! middle = x + proj(qkv(x)[.., ..H])
//! output = middle + fc2(gelu(fc1(middle)))
//! ```
//!
//! The loss is the sum of the last output. `benches/peers/fsdp2_stack.py` is the same stack in PyTorch.
//!
//! Laws:
//! - **SK-1** every variant computes the same products of the same shapes on the same numbers: weights, input
//!   and the order of products are those of the resident stack. What differs is where weights come from, how
//!   many of them a call takes and a gather brings (the *unit*: a weight, or a block), and what they are
//!   rounded to. With gathers N units ahead, gradients are reduced as many calls later, no fewer than the
//!   configuration's `reduce_delay`, unless a number is given; `auto` finds the number itself, whatever is given.
//! - **SK-2** a step is timed with the devices idle before it and after it; times are medians. Where a trace
//!   is requested, a session of its own is traced, of one ending.
//! - **SK-3** the loss of every variant stands beside that of the resident stack, so that a variant that
//!   computes something else is seen; with the ending `training` the gradient norm too. The ending
//!   `gradients` has no norm: its plan computes none, and one beside it would be timed with it. Its calls and
//!   reductions are those of `training`.
//! - **SK-4** a variant that cannot run is a row that says why; the others run all the same.
//!
//! | file | idea |
//! |---|---|
//! | `shape`, `values` | sizes of the stack, and the numbers it begins with |
//! | `layers` | the mathematics of a block, on lent memory |
//! | `resident`, `gradient` | weights in memory, no session: on a queue, and as one CUDA graph |
//! | `parts` | what the stack computes, part by part, which memory a part touches, and what stays for backward |
//! | `program`, `closure` | the stack as a step program, and its calls |
//! | `variant`, `sharded` | what is varied, and a session of it |
//! | `report` | the table and the JSON |
//!
//! Activations and their gradients are declared buffers, so the arena counts them. Where products quantize
//! what they read, what stays of their inputs for backward are the codes that it contracts over, and GELU is
//! taken on the way to codes; the bits are those of launches of their own. The input of the first block and
//! the gradient of the last are constant and belong to the closure.

mod closure;
mod gradient;
mod layers;
mod parts;
mod program;
mod report;
mod resident;
mod shape;
mod sharded;
pub(super) mod values;
mod variant;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{MeasureError, Measuring};
pub use report::{Measured, StackReport};
pub use shape::StackShape;
pub use variant::{Ahead, Ending, Mode, StackFormat, Unit};
use warpweft_backend::Transport;
use warpweft_base::median::median;
use warpweft_base::pattern::pattern_matches;
use warpweft_cuda::linear::Device;
use warpweft_cuda::{CudaFailure, DeviceOrdinal};
use warpweft_format::ElementType;
use warpweft_plan::cluster::Cluster;
use warpweft_plan::policy::ReduceDtype;
use warpweft_session::cluster::named;
use warpweft_session::config::Config;

/// Options of the stack benchmark.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// Sizes.
    pub shape: StackShape,
    /// The first so many GPUs of the machine.
    pub gpus: usize,
    /// Steps whose median is taken.
    pub steps: usize,
    /// Steps before them that are not counted.
    pub warm: usize,
    /// Formats of the weights.
    pub formats: Vec<StackFormat>,
    /// What one call computes with and one gather brings.
    pub units: Vec<Unit>,
    /// How far ahead gathers start.
    pub ahead: Vec<Ahead>,
    /// Issued or captured.
    pub modes: Vec<Mode>,
    /// How bytes travel.
    pub transports: Vec<Transport>,
    /// Without optimizer, and with it.
    pub endings: Vec<Ending>,
    /// Patterns of names of which a variant matches one; all of them when empty.
    pub only: Vec<String>,
    /// In what calls write weight gradients, those of the resident stack too: f32 or bf16.
    pub gradients: ElementType,
    /// In what gradients travel; where that is f32, those written in bf16 travel as they lie.
    pub reduce_dtype: ReduceDtype,
    /// How many calls after its own a gradient is reduced, 1 to 16. `None`: as many as gathers are ahead,
    /// at least as many as the configuration says. `auto` finds the number itself.
    pub reduce_delay: Option<u32>,
    /// The configuration the variants change.
    pub config: Option<PathBuf>,
    /// The machine that `auto` counts with and that steps are predicted for: a preset or a cluster file.
    /// `None` is the configuration's for `auto`, and predicts nothing.
    pub cluster: Option<String>,
    /// A folder for a trace of every sharded variant and ending. Files that are there are replaced.
    pub traces: Option<PathBuf>,
}

impl StackOptions {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| pattern_matches(pattern, name))
    }
}

/// Measures the resident stack, then every variant, then the resident stack again, which shows how far the
/// GPUs' clocks moved meanwhile. `say` gets what is measured; `stop` ends it between two steps.
///
/// # Errors
/// [`MeasureError`] when nothing can be measured: gradients in bf16 that were to travel in f32, no such GPUs, a
/// configuration that is refused, patterns that match nothing, the resident stack failing the first time.
/// What fails later, a variant or the resident stack, is a row of the report.
pub fn bench_stack(
    options: &StackOptions,
    stop: &AtomicBool,
    say: &mut dyn FnMut(&str),
) -> Result<StackReport, MeasureError> {
    if (options.reduce_dtype, options.gradients) == (ReduceDtype::F32, ElementType::Bf16) {
        return Err(MeasureError::Gradients);
    }
    let (base, machine) = surroundings(options)?;
    let variants = variant::select(options);
    if variants.is_empty() && !resident::NAMES.iter().any(|name| options.wants(name)) {
        return Err(MeasureError::NothingMatches { patterns: options.only.join(", ") });
    }
    let found = DeviceOrdinal::all().map_err(no_gpus)?;
    let Some(gpus) = found.get(..options.gpus).filter(|gpus| !gpus.is_empty()) else {
        return Err(MeasureError::Gpus { requested: options.gpus, found: found.len(), of: Measuring::Stack });
    };
    let pace = Pace { warm: options.warm, steps: options.steps };
    let setting = Setting { options, base, machine, gpus, pace, stop };
    if let Some(folder) = &options.traces {
        std::fs::create_dir_all(folder).map_err(|source| MeasureError::File {
            action: "make",
            path: folder.clone(),
            source,
        })?;
    }
    // Contexts stay open, so that libraries and kernels are loaded once and not by every session.
    let _contexts: Vec<Device> = gpus.iter().map(|gpu| Device::open(*gpu)).collect::<Result<_, _>>()?;
    say(&format!("resident: {} on {} GPUs", options.shape, gpus.len()));
    let sizes = (&options.shape, options.gradients);
    let rows = resident::measure(sizes, gpus, setting.pace, stop)?;
    let mut report = StackReport::new(options, rows);
    report.rows().iter().for_each(|row| say(&row.line()));
    for (number, session) in variants.iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Err(MeasureError::Interrupted(Measuring::Stack));
        }
        say(&format!("session {} of {}: {}", number + 1, variants.len(), session.variant));
        for row in measure_variant(&setting, session) {
            let row = report.add(row);
            say(&row.line());
        }
    }
    if !variants.is_empty() && !stop.load(Ordering::Relaxed) {
        say("resident, again");
        // What was measured before stands.
        let rows = resident::measure(sizes, gpus, setting.pace, stop);
        let rows = rows
            .unwrap_or_else(|error| resident::NAMES.map(|name| Measured::failed(name.to_owned(), &error)));
        for row in rows {
            let row = report.add(Measured { name: format!("{}/again", row.name), ..row });
            say(&row.line());
        }
    }
    Ok(report)
}

/// The traces that would be written.
pub(super) fn trace_files(options: &StackOptions) -> Vec<PathBuf> {
    let of_session = |session: variant::Selected| {
        let variant::Selected { variant, endings } = session;
        endings.into_iter().filter_map(move |ending| variant.trace_file(options, ending))
    };
    variant::select(options).into_iter().flat_map(of_session).collect()
}

/// What all sessions of a report have in common.
struct Setting<'a> {
    options: &'a StackOptions,
    base: Config,
    machine: Option<Cluster>,
    gpus: &'a [DeviceOrdinal],
    pace: Pace,
    stop: &'a AtomicBool,
}

/// The configuration that variants change, and the cluster that steps are predicted for.
fn surroundings(options: &StackOptions) -> Result<(Config, Option<Cluster>), MeasureError> {
    let mut base = Config::load(options.config.as_deref())?;
    if let Some(cluster) = &options.cluster {
        base.prefetch.cluster.clone_from(cluster);
    }
    Ok((base, options.cluster.as_deref().map(named).transpose()?))
}

/// Nothing but GPUs is measured here, so there is no other backend to be advised.
fn no_gpus(failure: CudaFailure) -> MeasureError {
    match failure {
        CudaFailure::Library { library, .. } => {
            MeasureError::NoGpus { what: format!("{library} cannot be opened"), of: Measuring::Stack }
        }
        failure => failure.into(),
    }
}

/// The rows of one session; rows that say why, where it could not be had.
fn measure_variant(setting: &Setting<'_>, session: &variant::Selected) -> Vec<Measured> {
    let mut rows = Vec::new();
    if let Err(error) = sharded::measure(setting, session, &mut rows) {
        let missing = session.endings.iter().skip(rows.len());
        rows.extend(missing.map(|ending| Measured::failed(session.variant.name(*ending), &error)));
    }
    rows
}

/// How many steps.
#[derive(Clone, Copy, Debug)]
struct Pace {
    warm: usize,
    steps: usize,
}

/// The median of times; none at all take none.
fn middle(times: Vec<Duration>) -> Duration {
    median(times).unwrap_or_default()
}
