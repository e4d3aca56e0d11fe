//! Trace errors, and what to do about them.

use std::io;
use std::path::PathBuf;

use warpweft_base::errors::shown_path;
use warpweft_base::id::{LaneId, RankId, TaskId};

/// An error of recording, writing, reading or drawing a trace.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// Writing the trace failed.
    #[error("cannot write the trace: {0}; see whether its disk is full")]
    Write(#[source] io::Error),

    /// A file of the trace could not be opened, created or read.
    #[error("cannot {action} `{}`: {source}", shown_path(path))]
    File {
        /// What was tried: `create`, `open`, `read`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The thread on which host spans start could not be made.
    #[error("cannot start the thread that anchors host spans: {0}; raise the limit of threads")]
    Thread(#[source] io::Error),

    /// A slice names a lane that the timeline does not declare.
    #[error("{task} lies on {lane} of {rank}, which the timeline does not declare; add its `LaneInfo`")]
    UndeclaredLane {
        /// The rank of the slice.
        rank: RankId,
        /// The missing lane.
        lane: LaneId,
        /// The task of the slice.
        task: TaskId,
    },

    /// Two `LaneInfo` name the same lane.
    #[error("{lane} of {rank} is declared twice; keep one `LaneInfo` for each lane")]
    LaneTwice {
        /// The rank of the lane.
        rank: RankId,
        /// The lane.
        lane: LaneId,
    },

    /// A slice ends before it begins.
    #[error(
        "{task} of step {step} on {rank} ends at {end} ns, before it begins at {begin} ns; \
         read both times from one clock"
    )]
    Backwards {
        /// The rank of the slice.
        rank: RankId,
        /// The task of the slice.
        task: TaskId,
        /// The step of the slice.
        step: u64,
        /// Its begin, in nanoseconds since the origin.
        begin: u64,
        /// Its end, in nanoseconds since the origin.
        end: u64,
    },

    /// A slice has an argument that the trace keeps for itself, or the same argument twice.
    #[error("{task} has the argument `{name}` twice, or it is one of {reserved:?}; rename it")]
    Argument {
        /// The task of the slice.
        task: TaskId,
        /// The name of the argument.
        name: String,
        /// The names that the trace keeps for itself.
        reserved: &'static [&'static str],
    },

    /// A counter holds a value that JSON cannot.
    #[error("counter `{name}` of {rank} is {value}; record finite values only")]
    Counter {
        /// The rank of the counter.
        rank: RankId,
        /// The name of the counter.
        name: String,
        /// Its value.
        value: f64,
    },

    /// The text is not a chrome trace.
    #[error("not a chrome trace: {0}; give the JSON file that a run with `trace.enabled` wrote")]
    NotATrace(#[source] serde_json::Error),

    /// One event of a chrome trace is not what the format says.
    #[error("event {index} of the trace ({name:?}): {reason}")]
    Event {
        /// The place of the event in the file, from 0.
        index: u64,
        /// Its name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },

    /// More ranks than one picture shows.
    #[error("a picture shows up to {most} ranks, and this one would show {ranks}; pick one of them (--rank)")]
    Ranks {
        /// Ranks that would be shown.
        ranks: usize,
        /// Ranks that a picture shows.
        most: usize,
    },

    /// The anchor event is not among the host spans.
    #[error(
        "the host spans hold no anchor event, so they cannot be placed in time; \
         check that `tracing` is not compiled with a `max_level_off` feature"
    )]
    NoAnchor,

    /// A host lane was entered, but its spans went elsewhere.
    #[error(
        "host lane `{name}` of {rank} recorded nothing: its thread had already recorded into an \
         earlier trace, to which `tracing-chrome` keeps it bound; start a fresh thread for each \
         recording"
    )]
    SilentLane {
        /// The rank of the lane.
        rank: RankId,
        /// The name given to the lane.
        name: String,
    },
}

warpweft_base::debug_in_words!(TraceError);
