//! Values of the configuration: their types and defaults; those of the optimizer are in [`super::optimizing`].
//!
//! Plain data: any value of these types can be built, and
//! [`Config::validate`](super::Config::validate) says which are valid. Text values of enumerations
//! are in snake case: `on_demand`.

use serde::{Deserialize, Serialize};

use warpweft_backend::DeviceTimes;
use warpweft_plan::policy::{self, ByteSize};

/// When gathers start: one of `depth`, `bytes` and `policy`. A source that sets one of them takes the others
/// back that sources before it set, so `WARPWEFT_PREFETCH__POLICY=auto` is enough over a file that sets a depth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prefetch {
    /// How many calls ahead a call's weights are gathered, 0 to 64; 0 gathers on demand. 1 by default. Calls that
    /// use no sharded weight do not count.
    pub depth: Option<u32>,
    /// As early as this limit on gathered bytes in flight allows.
    pub bytes: Option<ByteSize>,
    /// Chosen by the durations of tasks.
    pub policy: Option<PrefetchPolicy>,
    /// The most gathered bytes of one collective. Weights of a call share a collective up to this; when not set, all
    /// of them do. A weight of more is cut into chunks of about this size, at most 256, spread over the calls until
    /// they are needed, so that reductions on the same communicator get in between. Groups travel whole.
    pub chunk: Option<ByteSize>,
    /// The machine that `policy = "auto"` counts with, and trials ([`Tune::steps`]): a preset, or a cluster file.
    pub cluster: String,
}

/// Policies that choose by the durations of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrefetchPolicy {
    /// Each gather as late as is safe, within the budget.
    Auto,
}

impl Prefetch {
    /// The keys of which one is set.
    pub(super) const ALTERNATIVES: [&'static str; 3] = ["depth", "bytes", "policy"];

    /// The deepest depth there may be.
    pub const MAX_DEPTH: u32 = policy::MAX_DEPTH;

    /// A prefetch depth, in calls.
    #[must_use]
    pub fn depth(depth: u32) -> Self {
        Self { depth: Some(depth), ..Self::default() }
    }

    /// A limit on gathered bytes in flight.
    #[must_use]
    pub fn bytes(bytes: ByteSize) -> Self {
        Self { depth: None, bytes: Some(bytes), ..Self::default() }
    }

    /// By what tasks take.
    #[must_use]
    pub fn auto() -> Self {
        Self { depth: None, policy: Some(PrefetchPolicy::Auto), ..Self::default() }
    }

    /// These chunks and this machine, with gathers that start as `other` says.
    #[must_use]
    pub fn started_as(&self, other: Self) -> Self {
        Self { chunk: self.chunk, cluster: self.cluster.clone(), ..other }
    }
}

impl Default for Prefetch {
    fn default() -> Self {
        Self { depth: Some(1), bytes: None, policy: None, chunk: None, cluster: "h100x8-ib".to_owned() }
    }
}

/// As its line in a configuration: `prefetch.depth = 2`.
impl std::fmt::Display for Prefetch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.depth, self.bytes, self.policy) {
            (_, _, Some(PrefetchPolicy::Auto)) => formatter.write_str("prefetch.policy = \"auto\""),
            (_, Some(bytes), _) => write!(formatter, "prefetch.bytes = \"{bytes}\""),
            (depth, ..) => write!(formatter, "prefetch.depth = {}", depth.unwrap_or(1)),
        }
    }
}

/// Live tuning: a session chooses when gathers start by the time of its first steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tune {
    /// How many of a session's first steps are trials at most: 0 for none, or 6 to 20. A trial takes
    /// [`Tune::PER_TRIAL`] of them, so 20 are 18.
    ///
    /// Room is reserved for the largest plan that can be tried: within [`Memory::budget`] if that is set,
    /// else for the largest there is. Where the arena cannot be reserved, set a budget.
    pub steps: u32,
}

impl Tune {
    /// Steps of one trial, of which the first warms up and is not measured.
    pub const PER_TRIAL: u32 = 3;

    /// The fewest steps of trials there may be: those of two, because one has nothing to be compared with.
    pub const LEAST_STEPS: u32 = 2 * Self::PER_TRIAL;

    /// The most steps of trials there may be.
    pub const MOST_STEPS: u32 = 20;
}

/// The memory budget: the most transient memory a plan may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Most transient bytes per rank: gathered planes, dequantized weights, gradient slots, what peers send
    /// of gradients, and buffers. A plan that needs more is an error. No limit when not set.
    ///
    /// Outside of it, per rank: the resident part of the arena (optimizer state, shards, staging, carried
    /// buffers: `PlanBounds::resident_bytes`); on GPUs the receive buffer of small sums, and over several hosts of
    /// what is passed on ([`Session::receive_buffer_bytes`](crate::session::Session::receive_buffer_bytes)), captures
    /// of steps, and what closures, driver and NCCL take for themselves.
    pub budget: Option<ByteSize>,
}

/// Saves of checkpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckpointSaves {
    /// Most bytes of host memory per rank for the copy of its state that a save in the background makes
    /// ([`Session::snapshot_bytes`](crate::session::Session::snapshot_bytes)). Where the state has more, training
    /// waits for such a save. No limit when not set.
    pub snapshot_bytes: Option<ByteSize>,
}

/// The capture of steps: as CUDA graphs, on GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// Every step is issued task by task.
    #[default]
    Off,
    /// The whole step is captured and then replayed. A program with a dynamic call is refused.
    Step,
    /// As `Step`, but dynamic calls are issued anew in every step, between captured segments.
    Segments,
}

/// The CPU backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cpu {
    /// Pacing of collectives, so that overlap is visible on one machine.
    pub link: Link,
}

/// A link between ranks that is slower than memory. Traces and reports say when it is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// Bytes a rank receives in a second, 1e3 at least. As fast as memory when not set.
    pub bytes_per_s: Option<f64>,
    /// Microseconds before the first byte arrives: 0 to 3.6e9, an hour.
    pub latency_us: f64,
}

/// The trace of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TraceOutput {
    /// Whether one is recorded.
    pub enabled: bool,
    /// The file it is written to.
    pub path: String,
    /// The first step of the session that is recorded, counted from 0.
    pub first_step: u32,
    /// How many steps are recorded, at least 1: a trace of a whole run is too long to look at.
    pub steps: u32,
    /// The source of task times on a GPU. The CPU backend times its tasks itself.
    pub device: DeviceTimes,
}

impl Default for TraceOutput {
    fn default() -> Self {
        Self {
            enabled: false,
            path: "trace.json".to_owned(),
            first_step: 2,
            steps: 4,
            device: DeviceTimes::Events,
        }
    }
}
