//! Errors of planning, simulating, tracing and measuring, and what to do about them.
//!
//! Law: one enum for all commands that plan and time (`plan`, `simulate`, `tune`, `trace`, `calibrate`, `bench`),
//! because they take the same files and sessions, and write the same kinds of output. What goes wrong with files of
//! weights is [`ToolError`](super::ToolError)'s.

use std::io;
use std::path::PathBuf;

use warpweft_base::debug_in_words;
use warpweft_base::errors::{MOST_NAMES, shown, shown_path, shown_text};
use warpweft_base::id::RankId;
use warpweft_base::time::Nanoseconds;
use warpweft_base::whole_file::next_step;
#[cfg(feature = "cuda")]
use warpweft_cuda::CudaFailure;
use warpweft_plan::model::DeclareError;
use warpweft_plan::policy::ByteSize;
use warpweft_session::config::ConfigError;
use warpweft_session::session::SessionError;
use warpweft_session::trace::TraceError;

use super::calibrate::FitError;

/// The kind of measurement, on which the remedy for a mistake depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measuring {
    /// A schedule, or a machine by its backends.
    Machine,
    /// A stack of layers.
    Stack,
}

/// An error of planning, simulating, tracing, calibrating or benchmarking.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    // What several commands meet.
    /// A file declares what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The plan or the simulation was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The file system refused.
    #[error("cannot {action} `{}`: {source}; {}", shown_path(path), next_step(source))]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there that nobody said may be replaced.
    #[error("{}", match of {
        Measuring::Machine => {
            format!("`{}` exists; remove it, name another file, or replace it with --force", shown_path(path))
        }
        Measuring::Stack => format!(
            "`{}` exists; remove it, name another file or folder, or replace it with --force",
            shown_path(path)
        ),
    })]
    Exists {
        /// The file.
        path: PathBuf,
        /// What was measured, or is to be.
        of: Measuring,
    },
    /// Input and output are the same file.
    #[error("`{}` is both input and output; name another file for the output", shown_path(path))]
    SameFile {
        /// The output, as given.
        path: PathBuf,
    },
    /// A program was refused.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// Whoever watches the work ended it.
    #[error("{}", match .0 {
        Measuring::Machine => "interrupted; no file was written",
        Measuring::Stack => "interrupted",
    })]
    Interrupted(Measuring),
    /// Fewer GPUs than are needed.
    #[error("{}", match of {
        Measuring::Machine => format!(
            "{ranks} ranks need {ranks} GPUs, and this machine shows {found}; lower --ranks, or use --device cpu",
            ranks = requested
        ),
        Measuring::Stack => format!("{requested} GPUs were requested and {found} are here; pass --gpus"),
    })]
    Gpus {
        /// As asked, one for each rank.
        requested: usize,
        /// As the driver says.
        found: usize,
        /// What is measured.
        of: Measuring,
    },
    /// GPUs cannot be asked, or there are none.
    #[error("{}", match of {
        Measuring::Machine => format!("{0}; use --device cpu to measure the CPU backend", what),
        Measuring::Stack => format!("GPUs are measured, and none can be found here: {what}; run this where they are"),
    })]
    NoGpus {
        /// What is missing, or what the driver said.
        what: String,
        /// What is measured.
        of: Measuring,
    },

    // Plans, simulations and traces.
    /// The sizes of a model do not go together with its formats.
    #[error("`{}`: {source}", shown_path(path))]
    Model {
        /// The model's file.
        path: PathBuf,
        /// What is refused.
        source: Box<DeclareError>,
    },
    /// A step longer than the times that are counted.
    #[error(
        "a step is expected to take more than 30 years on `{cluster}`; its speeds are per second: see that none lacks its power of ten"
    )]
    Endless {
        /// The cluster.
        cluster: String,
    },
    /// The trace is not one of ours.
    #[error("`{}`: {source}", shown_path(path))]
    Trace {
        /// The trace, or the file that should become one.
        path: PathBuf,
        /// What is wrong.
        source: TraceError,
    },
    /// The trace is empty.
    #[error(
        "`{}` holds no slice, so there is nothing to sum up; `warpweft simulate --trace` and sessions with trace.enabled write traces{}",
        shown_path(path),
        notes.iter().take(MOST_NAMES).map(|note| format!("\nnote: {}", shown_text(note))).collect::<String>()
    )]
    Empty {
        /// The trace.
        path: PathBuf,
        /// What the recording says of itself. The first ten are shown.
        notes: Vec<String>,
    },
    /// The trace has no such step.
    #[error("`{}` has no step {step}; it has {has}", shown_path(path))]
    NoStep {
        /// The trace.
        path: PathBuf,
        /// The step requested.
        step: u64,
        /// The steps there are.
        has: String,
    },
    /// The trace has no such rank.
    #[error("`{}` has no {rank}; it has {has}", shown_path(path))]
    NoRank {
        /// The trace.
        path: PathBuf,
        /// The rank requested.
        rank: RankId,
        /// The ranks there are.
        has: String,
    },
    /// Nothing is left to be drawn.
    #[error(
        "nothing of step {step} lies between --from and --to; both count in milliseconds since the begin of the step, which takes {length}"
    )]
    NoWindow {
        /// The step.
        step: u64,
        /// How long it takes.
        length: Nanoseconds,
    },
    /// There is no model to be read.
    #[error(
        "cannot read the model `{}`: {source}; {}",
        shown_path(path),
        match source.kind() {
            io::ErrorKind::InvalidData => "save it as UTF-8",
            _ => "check its path, or write it: `warpweft plan --help` says what it declares",
        }
    )]
    NoModel {
        /// Where it should be.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// One file is to be both trace and picture.
    #[error("`{}` is named for the trace and for the picture; name two files", shown_path(path))]
    OneName {
        /// The file.
        path: PathBuf,
    },
    /// No task of that name or number.
    #[error(
        "no task of the plan is `{wanted}`; `warpweft plan --tasks` lists their numbers, ops and subjects"
    )]
    NoTask {
        /// What was requested.
        wanted: String,
    },
    /// Every policy needs more than there may be.
    #[error(
        "no policy fits memory.budget ({budget}); the least, `{least}`, needs {}: set memory.budget (--budget) to \"{}\" or more",
        needed.in_full(),
        needed.rounded_up()
    )]
    NoneFits {
        /// The most there may be.
        budget: ByteSize,
        /// The policy that needs least.
        least: String,
        /// What it needs.
        needed: ByteSize,
    },
    /// Options of layouts where policies are sought.
    #[error("--json and --rank-tokens are of layouts; say --mesh auto as well, or leave them out")]
    NotLayouts,
    /// Nothing that was tried could be run.
    #[error("nothing that was tried can be run: {reason}")]
    NothingRuns {
        /// Why the last one could not.
        reason: String,
    },

    // A machine that is measured.
    /// What was measured gives no number.
    #[error("{what}: {source}")]
    Fit {
        /// The number wanted.
        what: &'static str,
        /// Why there is none.
        source: FitError,
    },
    /// Too few ranks to communicate.
    #[error("{ranks} ranks have nothing to send each other; measure at least 2")]
    Ranks {
        /// Ranks requested.
        ranks: u32,
    },
    /// More ranks than a node of the simulated cluster has.
    #[error(
        "one node is measured, and one of `{}` has {found} GPUs, not {ranks}; lower --ranks",
        shown(cluster)
    )]
    Node {
        /// The cluster.
        cluster: String,
        /// Ranks requested.
        ranks: u32,
        /// GPUs of a node.
        found: u32,
    },
    /// This program was built without GPUs.
    #[error(
        "this program was built without the feature `cuda`; use --device cpu, or build it with that feature"
    )]
    NoCuda,
    /// The backend did not time a step's tasks.
    #[error("the steps of `{program}` came without times of their tasks, so nothing can be read from them")]
    Untimed {
        /// The program.
        program: String,
    },
    /// The cluster has no links between nodes to take over.
    #[error(
        "`{name}` has no table `between`, so there is nothing to take over from it; name another cluster"
    )]
    NoLinksBetween {
        /// The cluster.
        name: String,
    },

    // A stack of layers that is measured.
    /// Gradients written in bf16 that were to travel in f32.
    #[error(
        "gradients written in bf16 travel in bf16, and f32 was requested; say --gradients f32 with --reduce-dtype f32"
    )]
    Gradients,
    /// Patterns that no variant has.
    #[error(
        "no variant is named like {patterns}; names are format/unit/prefetch/mode/transport/ending, as in bf16/block/depth1/graph/peer/gradients"
    )]
    NothingMatches {
        /// The patterns.
        patterns: String,
    },
    /// A CUDA library or a layer refused.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] CudaFailure),
    /// Some variants could not be measured.
    #[error("{failed} of {all} variants could not be measured; the table says why")]
    Failed {
        /// Those that could not.
        failed: usize,
        /// All.
        all: usize,
    },
}

debug_in_words!(MeasureError);

impl MeasureError {
    /// A fit that failed, as a function for `map_err`.
    pub(super) fn of(what: &'static str) -> impl Fn(FitError) -> Self {
        move |source| Self::Fit { what, source }
    }
}
