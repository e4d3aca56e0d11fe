//! Configuration: what an operator may choose, from a TOML file and the environment.
//!
//! Laws:
//! - **CF-1** A value is used only after it was validated; an error names the key, where its value
//!   came from, and what the key takes. Nothing is half-loaded.
//! - **CF-2** An unknown key is an error, never ignored.
//! - **CF-3** Every value knows where it came from: default, file and line, environment variable,
//!   or program.
//! - **CF-4** What [`Config::effective`] prints loads back as the same configuration.
//!
//! Precedence, later wins: defaults, file, environment. An environment variable is the prefix
//! `WARPWEFT_` and the key in capitals with `__` for each dot: `WARPWEFT_PREFETCH__DEPTH=2`. Its
//! value is read as TOML; what is no TOML, or no text where the key takes text, is taken as text as
//! it stands. A list is replaced, not extended.
//!
//! | file | idea |
//! |---|---|
//! | `keys` | the table of keys: what each takes, how it is read, when it is valid |
//! | `choices`, `optimizing` | the types of the values that the planner and the backend do not name |
//! | `speed` | how fast something may be |
//! | `weights` | rules that choose format and placement by the name of a weight |
//! | `document`, `environment` | the two sources, with the place of every key |
//! | `declared` | other files of the same kind: a cluster, a model |
//! | `decoder`, `calls` | a model by its sizes; a model by its weights, buffers and calls |
//! | `reading` | a value of TOML as a type |
//! | `load` | sources to a configuration |
//! | `refine` | those rules applied to a declared model |
//! | `disagreement` | keys that do not go together |
//! | `origin`, `effective` | where values came from; printing them |
//! | `suggest`, `elsewhere` | the key or name that was meant; what settings of other frameworks are called here |
//! | `shown` | the value that was given |
//!
//! Deliberately absent: a search for files, and any global configuration. The caller names the file
//! and passes the result on.

mod calls;
mod choices;
mod declared;
mod decoder;
mod disagreement;
mod document;
mod effective;
mod elsewhere;
mod environment;
mod error;
mod keys;
mod load;
mod mesh_axes;
mod optimizing;
mod origin;
mod reading;
mod refine;
mod shown;
mod speed;
mod suggest;
mod weights;

pub use calls::CallList;
pub use choices::{Capture, CheckpointSaves, Cpu, Link, Memory, Prefetch, PrefetchPolicy, TraceOutput, Tune};
pub use declared::Declared;
pub(crate) use declared::agreeing;
#[doc(hidden)]
pub use declared::{Rule, Rules, Takes};
pub(crate) use disagreement::stands_still;
pub use error::ConfigError;
pub use mesh_axes::MeshAxes;
pub use optimizing::{OptimizerConfig, Quantize, Scaling};
pub use origin::{Origin, Origins};
// Values of these types stand in a configuration.
#[doc(hidden)]
pub use speed::Speed;
pub use warpweft_backend::{DeviceTimes, SignalBy, Transport};
#[doc(hidden)]
pub use warpweft_base::pattern::pattern_matches;
pub use warpweft_format::{AmaxChoice, Format, Via};
pub use warpweft_plan::model::{Placement, Reuse};
pub use warpweft_plan::policy::{
    AcrossMicroBatches, AdamMode, Backward, ByteSize, ByteSizeError, Columnwise, Masters, Moments,
    OptimizerShard, Reduce, ReduceDtype, ReduceEvery,
};
pub use weights::{WeightRule, WeightSettings};

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use warpweft_plan::model::{DeclareError, Mesh, Model, WeightSpec};
use warpweft_plan::policy;

/// The configuration of a session: every choice apart from the model and its step programs.
///
/// Built by [`Config::load`], or in code by `Config { check: true, ..Config::default() }`; a
/// session validates both alike.
///
/// ```
/// use warpweft::config::{Config, Prefetch};
/// use warpweft::format::Via;
///
/// let mut config = Config { prefetch: Prefetch::depth(2), ..Config::default() };
/// config.quantize.via = Via::None;
/// config.validate()?;
/// // What is printed is a file that says the same.
/// assert_eq!(Config::from_toml_str(&config.effective(), "run.toml")?, config);
/// assert_eq!(Config::from_toml_str("prefetch.depth = 2", "run.toml")?.prefetch, config.prefetch);
/// let error = Config::from_toml_str("prefetch.dept = 2", "run.toml").unwrap_err();
/// assert!(error.to_string().contains("run.toml:1"));
/// # Ok::<(), warpweft::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// When gathers start.
    pub prefetch: Prefetch,
    /// How much transient memory a plan may use.
    pub memory: Memory,
    /// How checkpoints are saved.
    pub checkpoint: CheckpointSaves,
    /// How ranks are arranged.
    pub mesh: MeshAxes,
    /// Whether the first steps of a session are trials that choose when gathers start.
    pub tune: Tune,
    /// Communicators per rank ([`Config::COMMUNICATORS`]): with two, reductions do not queue behind gathers;
    /// with three, sums over replicas do not queue behind reductions, where there are replicas; with four, collectives
    /// between calls queue behind nothing else. When absent, four where some program has such collectives, else three.
    pub communicators: Option<u32>,
    /// Where backward finds a weight that forward gathered.
    pub backward: Backward,
    /// Where a micro-batch finds a weight that the one before gathered.
    pub across_micro_batches: AcrossMicroBatches,
    /// How many gradients of a weight are added on a rank before they are reduced.
    pub reduce_every: ReduceEvery,
    /// How many calls after its own a gradient is reduced ([`Config::REDUCE_DELAY`]). From three on exchanges begin
    /// before the next call; two take the memory of one call's gradients less. On GPUs a sum waits for a
    /// multiprocessor, and the next gradient may take its bytes only then: more evens that out, and costs a
    /// gradient of memory for each call. `prefetch.policy = "auto"` finds a number itself.
    pub reduce_delay: u32,
    /// In what gradients travel to be reduced.
    pub reduce_dtype: ReduceDtype,
    /// When columnwise planes are derived.
    pub columnwise: Columnwise,
    /// Whether what a call reads of gathered planes (planes made whole with the rank's own part, values
    /// dequantized for products that take no codes) is made beside the call before, and not between the two.
    /// Pays where calls are short, and costs the memory of one more call's values. Gathers on demand leave no
    /// time for it.
    pub derive_ahead: bool,
    /// How gradients are summed over the ranks.
    pub reduce: Reduce,
    /// How bytes get from one GPU to another; the CPU backend has one way only.
    pub transport: Transport,
    /// Among GPUs that write into each other's memory: up to so many bytes for each peer a collective goes by
    /// one kernel, meetings included, instead of copy engines; 0 for none but the smallest. `None` takes
    /// [`Config::KERNEL_EXCHANGE`] where steps are captured, and 0 elsewhere.
    pub kernel_exchange: Option<ByteSize>,
    /// Among such GPUs: what sets the words by which ranks meet.
    pub signal_by: SignalBy,
    /// Seconds that a rank waits for the others, or for its device, before it gives the world up. With several
    /// processes that covers what one does between two steps, such as saving a checkpoint, while the others are
    /// in the next.
    pub deadline_s: f64,
    /// How masters become quantized weights.
    pub quantize: Quantize,
    /// Adam and clipping.
    pub optimizer: OptimizerConfig,
    /// Whether a step is captured once and replayed.
    pub capture: Capture,
    /// The CPU backend.
    pub cpu: Cpu,
    /// Whether every rank's backend, whoever made it, is wrapped in the checking layer, which finds races and
    /// costs time.
    pub check: bool,
    /// The trace of a run.
    pub trace: TraceOutput,
    /// Rules by which weights get another format or placement than their declaration says.
    pub weights: Vec<WeightRule>,
    /// Where the values came from; empty in a configuration built in code.
    #[serde(skip)]
    pub origins: Origins,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            prefetch: Prefetch::default(),
            memory: Memory::default(),
            checkpoint: CheckpointSaves::default(),
            mesh: MeshAxes::default(),
            tune: Tune::default(),
            communicators: None,
            backward: Backward::default(),
            across_micro_batches: AcrossMicroBatches::default(),
            reduce_every: ReduceEvery::default(),
            reduce_delay: 3,
            reduce_dtype: ReduceDtype::default(),
            columnwise: Columnwise::default(),
            derive_ahead: false,
            reduce: Reduce::default(),
            transport: Transport::default(),
            kernel_exchange: None,
            signal_by: SignalBy::default(),
            deadline_s: 30.0,
            quantize: Quantize::default(),
            optimizer: OptimizerConfig::default(),
            capture: Capture::default(),
            cpu: Cpu::default(),
            check: false,
            trace: TraceOutput::default(),
            weights: Vec::new(),
            origins: Origins::default(),
        }
    }
}

impl Config {
    /// How many communicators a rank may have.
    pub const COMMUNICATORS: RangeInclusive<u32> = policy::COMMUNICATORS;

    /// How many of them there is a use for without collectives between calls.
    pub(crate) const WITHOUT_COLLECTIVES: u32 = 3;

    /// How many calls after its own a gradient may be reduced.
    pub const REDUCE_DELAY: RangeInclusive<u32> = policy::REDUCE_DELAY;

    /// What goes by a kernel where steps are captured and nothing else is said: every launch of a capture
    /// costs the host about 2 µs for each word and copy in it, and next to nothing for a kernel.
    pub const KERNEL_EXCHANGE: ByteSize = ByteSize::new(4 << 20);

    /// How long a rank waits for another one, or for its device.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline_s)
    }

    /// The same, with as many replicas as a session on `ranks` ranks makes by itself of a model
    /// ([`MeshAxes::dp_replicate`]), where nobody says how many.
    #[must_use]
    #[doc(hidden)]
    pub fn with_usual_replicas(&self, ranks: u32, model: &Model) -> Self {
        let mut config = self.clone();
        // Experts of a rank are those of one of its expert-parallel group.
        let others = |weight: &WeightSpec| if weight.expert { u64::from(self.mesh.ep) } else { 1 };
        let trains = |weight: &&WeightSpec| !weight.frozen;
        let elements = |weight: &WeightSpec| (weight.shape.elements() as u64).saturating_mul(others(weight));
        let elements = model.weights().iter().filter(trains).map(elements).fold(0, u64::saturating_add);
        if let Some(replicas) = self.mesh.usual_replicas(ranks, elements) {
            config.mesh.dp_replicate = Some(replicas);
            config.set_by("mesh.dp_replicate", "the number of ranks");
        }
        config
    }

    /// The mesh of `ranks` ranks with the axes of [`Config::mesh`]; where these leave the replicas open, of one.
    ///
    /// # Errors
    /// [`DeclareError::Axes`] for axes that do not multiply to `ranks`; as [`Mesh::hybrid`]: no ranks, too many, or a
    /// number that the replicas do not divide; as [`Mesh::with_tensor`], [`Mesh::with_context`] and
    /// [`Mesh::with_levels`].
    pub fn mesh_of(&self, ranks: u32) -> Result<Mesh, DeclareError> {
        self.mesh.of(ranks)
    }

    /// Refuses the value of `key` for what the rule of its key does not know: `problem` says what is wrong with it,
    /// `expected` what to set it to.
    pub(crate) fn refuse(&self, key: String, problem: String, expected: String) -> ConfigError {
        let entry = keys::entries(self).into_iter().find(|entry| entry.path == key);
        let origin = entry.map_or(Origin::Program, |entry| self.origins.of(&entry));
        ConfigError::Invalid { key, origin, problem, expected }
    }

    /// Checks every value (CF-1). Loading does so by itself; a configuration built or changed in
    /// code is checked by whoever receives it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] for the first value, in the order of
    /// [`effective`](Self::effective), that its key does not take; then [`ConfigError::Together`] for keys that
    /// do not go together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let mut entries = keys::entries(self);
        match entries.iter().position(|entry| !entry.valid).map(|at| entries.swap_remove(at)) {
            None => self.disagreement(&entries).map_or(Ok(()), Err),
            Some(entry) => Err(ConfigError::Invalid {
                origin: self.origins.of(&entry),
                problem: match &entry.value {
                    Some(value) => format!("is {}", shown::shown(value)),
                    None => "is missing".to_owned(),
                },
                expected: entry.expected.to_owned(),
                key: entry.path,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One invalid value for every key that has any.
    fn invalid() -> Vec<(&'static str, Config)> {
        let with = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config
        };
        vec![
            ("communicators", with(|c| c.communicators = Some(5))),
            ("deadline_s", with(|c| c.deadline_s = 0.0)),
            ("prefetch.depth", with(|c| c.prefetch.depth = Some(65))),
            ("prefetch.policy", with(|c| c.prefetch.policy = Some(PrefetchPolicy::Auto))),
            ("prefetch.bytes", with(|c| c.prefetch = Prefetch::bytes(ByteSize::new(0)))),
            ("prefetch.cluster", with(|c| c.prefetch.cluster.clear())),
            ("tune.steps", with(|c| c.tune.steps = 5)),
            ("memory.budget", with(|c| c.memory.budget = Some(ByteSize::new(0)))),
            ("mesh.dp_replicate", with(|c| c.mesh.dp_replicate = Some(0))),
            ("mesh.dp_shard", with(|c| c.mesh.dp_shard = Some(0))),
            ("mesh.cp", with(|c| c.mesh.cp = 0)),
            ("mesh.tp", with(|c| c.mesh.tp = 0)),
            ("mesh.ep", with(|c| c.mesh.ep = 0)),
            ("mesh.ep_shard", with(|c| c.mesh.ep_shard = Some(0))),
            ("mesh.optimizer_instances", with(|c| c.mesh.optimizer_instances = 0)),
            ("quantize.amax_history", with(|c| c.quantize.amax_history = 0)),
            ("optimizer.lr", with(|c| c.optimizer.lr = -1e-3)),
            ("optimizer.beta1", with(|c| c.optimizer.beta1 = 1.0)),
            ("optimizer.beta2", with(|c| c.optimizer.beta2 = 0.999_999_999_9)),
            ("optimizer.eps", with(|c| c.optimizer.eps = 1e-60)),
            ("optimizer.weight_decay", with(|c| c.optimizer.weight_decay = f64::NAN)),
            ("optimizer.max_norm", with(|c| c.optimizer.max_norm = f64::INFINITY)),
            ("cpu.link.bytes_per_s", with(|c| c.cpu.link.bytes_per_s = Some(0.0))),
            ("cpu.link.latency_us", with(|c| c.cpu.link.latency_us = -1.0)),
            // More than a clock can add.
            ("cpu.link.latency_us", with(|c| c.cpu.link.latency_us = 1e30)),
            ("cpu.link.latency_us", with(|c| c.cpu.link.latency_us = 200.0)),
            ("trace.path", with(|c| c.trace.path = String::new())),
            ("trace.steps", with(|c| c.trace.steps = 0)),
            ("weights.0.match", with(|c| c.weights = vec![WeightRule::default()])),
        ]
    }

    #[test]
    fn cf1_a_configuration_built_in_code_is_validated_key_by_key() {
        assert!(Config::default().validate().is_ok());
        for (key, config) in invalid() {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.starts_with(&format!("set by the program: `{key}` is ")), "{error}");
        }
    }

    /// Who sets a policy in code did not write the default depth beside it.
    #[test]
    fn a_second_way_to_prefetch_set_in_code_is_refused_with_the_names_of_the_constructors() {
        let prefetch = Prefetch { policy: Some(PrefetchPolicy::Auto), ..Prefetch::default() };
        let error = Config { prefetch, ..Config::default() }.validate().unwrap_err().to_string();
        assert!(error.contains("`Prefetch::auto`") && !error.contains("remove one of them"), "{error}");
        Config { prefetch: Prefetch::auto(), ..Config::default() }.validate().unwrap();
    }

    /// CF-4: it would be printed without a policy, and that loads as the default depth.
    #[test]
    fn a_policy_that_says_nothing_is_refused() {
        let prefetch = Prefetch { depth: None, ..Prefetch::default() };
        let error = Config { prefetch, ..Config::default() }.validate().unwrap_err().to_string();
        assert!(error.contains("`prefetch.depth` is missing; set it to a whole number"), "{error}");
    }

    #[test]
    fn a_rule_that_changes_nothing_is_refused() {
        let rule = WeightRule { pattern: "*".to_owned(), ..WeightRule::default() };
        let config = Config { weights: vec![rule], ..Config::default() };
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.contains("`weights.0.format`") && error.contains("another key beside `match`"),
            "{error}"
        );
    }
}
