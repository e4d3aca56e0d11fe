//! The types of the values, with their defaults; those of the optimizer are in [`super::optimizing`].
//!
//! Plain data: any value of these types can be built, and
//! [`Config::validate`](super::Config::validate) says which are sound. Text values of enumerations
//! are in snake case: `on_demand`.

use serde::{Deserialize, Serialize};

use super::size::ByteSize;
use crate::format::ElementType;

/// When gathers start: one of `depth`, `bytes` and `policy`. A source that sets one of them takes the others
/// back that sources before it set, so `WARPWEFT_PREFETCH__POLICY=auto` is enough over a file that sets a depth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Prefetch {
    /// How many calls ahead a call's weights are gathered, 0 to 64; 0 gathers on demand. 1 by default. Calls that
    /// use no sharded weight do not count.
    pub depth: Option<u32>,
    /// As early as so many bytes of gathered planes in flight allow.
    pub bytes: Option<ByteSize>,
    /// By what tasks take.
    pub policy: Option<PrefetchPolicy>,
    /// The most gathered bytes of one collective. Weights of a call share a collective up to this; when not set, all
    /// of them do. A weight of more is cut into chunks of about this size, at most 256, spread over the calls until
    /// they are needed, so that reductions on the same communicator get in between. Groups travel whole.
    pub chunk: Option<ByteSize>,
    /// The machine that `policy = "auto"` counts with, and trials ([`Tune::steps`]): a preset, or a cluster file.
    pub cluster: String,
}

/// Policies that choose by what tasks take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PrefetchPolicy {
    /// Each gather as late as is safe, within the budget.
    Auto,
}

impl Prefetch {
    /// The keys of which one is set.
    pub(super) const ALTERNATIVES: [&'static str; 3] = ["depth", "bytes", "policy"];

    /// The deepest depth there may be.
    pub const MAX_DEPTH: u32 = 64;

    /// A prefetch depth, in calls.
    #[must_use]
    pub fn depth(depth: u32) -> Self {
        Self { depth: Some(depth), ..Self::default() }
    }

    /// So many bytes in flight.
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

/// How ranks are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshAxes {
    /// How many copies of the model there are, 1 to 65,536. Weights are sharded over the ranks of a copy, and
    /// gradients are summed over copies too. It must divide the number of ranks, of which each copy has as
    /// many, one after the other.
    pub replicate: u32,
}

impl Default for MeshAxes {
    fn default() -> Self {
        Self { replicate: 1 }
    }
}

/// Whether a session chooses when gathers start by what its first steps take.
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

/// How much transient memory a plan may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// Most transient bytes per rank: gathered planes, dequantized weights, gradient slots, what peers send
    /// of gradients, and buffers. A plan that needs more is an error. No limit when not set.
    ///
    /// Outside of it, per rank: the resident part of the arena (optimizer state, shards, staging, carried
    /// buffers: `PlanBounds::resident_bytes`); on GPUs the landing of small sums, and over several hosts of
    /// what is passed on ([`Session::landing_bytes`](crate::session::Session::landing_bytes)), recordings of
    /// steps, and what closures, driver and NCCL take for themselves.
    pub budget: Option<ByteSize>,
}

/// Where backward finds a weight that forward gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backward {
    /// It is gathered again: less memory, twice the traffic.
    #[default]
    Regather,
    /// Its planes are kept from forward to backward.
    Keep,
}

/// Where a micro-batch finds a weight that the one before gathered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcrossMicroBatches {
    /// It is gathered again.
    #[default]
    Regather,
    /// Its planes are kept from micro-batch to micro-batch.
    Keep,
    /// All planes are kept if the plan then fits `memory.budget`, and gathered again if not; the plan says which.
    Fit,
}

/// How many gradients of a weight are added on each rank before the ranks reduce them. Sums on the rank take
/// one more full gradient in f32 for as long as they are open. The grouping changes the order of f32
/// additions, and so the last bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceEvery {
    /// Every call's gradient is reduced by itself: least memory, most traffic.
    #[default]
    Call,
    /// Those of one micro-batch: a weight that several calls of it give a gradient is reduced once.
    MicroBatch,
    /// Those of the whole step: every weight is reduced once.
    Step,
}

/// In what gradients of sharded weights travel to be reduced that calls write in f32; those written in bf16
/// travel as they are. Sums and main grads are f32 either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, to nearest even, before they leave the rank: half the bytes.
    Bf16,
}

impl ReduceDtype {
    /// The type of an element that travels.
    #[must_use]
    pub const fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::Bf16 => ElementType::Bf16,
        }
    }

    /// In what a gradient travels that its call wrote in `written`.
    #[must_use]
    pub const fn travels(self, written: ElementType) -> ElementType {
        match written {
            ElementType::F32 => self.element(),
            ElementType::Bf16 | ElementType::U8 | ElementType::U32 => ElementType::Bf16,
        }
    }
}

/// When columnwise planes are derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Columnwise {
    /// From the rowwise planes, right before the use that reads them.
    #[default]
    OnDemand,
    /// Once after the gather, kept as long as the rowwise planes are.
    Keep,
}

/// How gradients are summed over the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// Ranks 0 to R-1 in f32, by a task of every rank behind an exchange: the same bits in every mode and
    /// layout of ranks.
    #[default]
    Ordered,
    /// In the order of the collective library: the same bits only for the same layout and mode. Gradients
    /// that travel in bf16 are summed in order all the same, because the library would sum them in bf16.
    Nccl,
}

/// How bytes get from one GPU to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Transport {
    /// `peer` where all GPUs of a host reach each other, and over several hosts if these have equally many
    /// ranks and more than one; `nccl` elsewhere.
    #[default]
    Auto,
    /// Copy engines write into the peers' memory; needs GPUs that reach each other. Over several hosts NCCL
    /// carries what goes between them; each needs equally many ranks, numbered host by host.
    Peer,
    /// NCCL's collectives; needs a GPU of its own for each rank.
    Nccl,
}

/// What sets a word in a peer's memory, by which ranks that push with copy engines meet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SignalBy {
    /// `stream` with drivers for CUDA 13.0 and older, `copy` with newer ones.
    #[default]
    Auto,
    /// A memory operation of the stream. From CUDA 13.1 on they write to no other GPU.
    Stream,
    /// A copy of four bytes, with any driver. It is a call more for every peer and meeting, in recordings too.
    Copy,
}

/// Whether a step is recorded once and replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capture {
    /// Every step is issued task by task.
    #[default]
    Off,
    /// The whole step is recorded and then replayed. A program with a dynamic call is refused.
    Step,
    /// As `Step`, but dynamic calls are issued anew in every step, between recorded segments.
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
    /// What says when tasks ran on a GPU. The CPU backend times its tasks itself.
    pub device: DeviceTimes,
}

/// What says when tasks ran on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DeviceTimes {
    /// CUPTI where it is there and lets us, events elsewhere; a session says which, and why.
    Auto,
    /// CUPTI, which sees kernels, copies and memory sets, and not what a lane waits between them. A session
    /// does not start without it. On H200, a step of 14 ms took 14 to 19 % longer under it.
    Cupti,
    /// An event behind every task, which is taken to begin when what it comes behind has ended and the host
    /// has begun to enqueue it. In a recorded step each event is a node of its own.
    /// Such a step took 0.5 to 1.8 % longer with them.
    #[default]
    Events,
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
