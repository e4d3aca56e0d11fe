//! Why a schedule could not be shown.

use std::io;
use std::path::PathBuf;

use warpweft::config::{ByteSize, ConfigError};
use warpweft::id::RankId;
use warpweft::model::DeclareError;
use warpweft::session::SessionError;
use warpweft::trace::{Nanoseconds, TraceError};
use warpweft::tune::LimitsError;
use warpweft_base::debug_in_words;
use warpweft_base::errors::{MOST_NAMES, shown_path, told};
use warpweft_base::whole_file::next_step;

/// Why a plan, simulation or trace could not be shown.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// A file declares what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
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
    /// The plan or the simulation was refused.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The tuner was given limits that it cannot keep.
    #[error(transparent)]
    Limits(#[from] LimitsError),
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
        notes.iter().take(MOST_NAMES).map(|note| format!("\nnote: {}", told(note))).collect::<String>()
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
        /// The step asked for.
        step: u64,
        /// The steps there are.
        has: String,
    },
    /// The trace has no such rank.
    #[error("`{}` has no {rank}; it has {has}", shown_path(path))]
    NoRank {
        /// The trace.
        path: PathBuf,
        /// The rank asked for.
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
    #[error("`{}` exists; remove it, name another file, or replace it with --force", shown_path(path))]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Input and output are the same file.
    #[error("`{}` is both input and output; name another file for the output", shown_path(path))]
    SameFile {
        /// The output, as given.
        path: PathBuf,
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
        /// What was asked for.
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
    /// Nothing that was tried could be run.
    #[error("no policy can be run: {reason}")]
    NothingRuns {
        /// Why the last one could not.
        reason: String,
    },
}

debug_in_words!(ScheduleError);
