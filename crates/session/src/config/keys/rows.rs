//! The table of keys.
//!
//! Law: whatever has to be known about a key stands in its row: what it takes in words, how its value is read
//! from a configuration, and which values are valid.

use serde::Serialize;
use toml::Value;

use crate::config::{Config, Prefetch, Tune, WeightRule};
use warpweft_plan::model::{Mesh, Segments};

/// A key of the configuration.
pub(super) struct Row {
    pub(super) path: &'static str,
    pub(super) expected: &'static str,
    pub(super) value: fn(&Config) -> Option<Value>,
    pub(super) valid: fn(&Config) -> bool,
}

/// A key of every rule under `weights`.
pub(super) struct RuleRow {
    pub(super) field: &'static str,
    pub(super) expected: &'static str,
    pub(super) value: fn(&WeightRule) -> Option<Value>,
    pub(super) valid: fn(&WeightRule) -> bool,
}

const FROM_ZERO: &str = "a finite number from 0 on";
const BELOW_ONE: &str = "a number from 0 to below 1 in 32-bit floating point";
/// Bytes a second of a paced link; a slower one seems to hang.
const SLOWEST_LINK: f64 = 1e3;
/// The least norm to clip to. Of smaller gradients f32 holds no squares, so second moments would be 0; with a large
/// loss scale so would the clip factor over it.
const SMALLEST_NORM: f64 = 1e-18;
const SWITCH: &str = "`true` or `false`";

/// Keys in the order in which they are printed: those without a table first.
pub(super) const ROWS: &[Row] = &[
    Row {
        path: "communicators",
        expected: "a whole number from 1 to 4, or remove it for as many as there is a use for",
        value: |c| c.communicators.and_then(toml),
        valid: |c| c.communicators.is_none_or(|count| Config::COMMUNICATORS.contains(&count)),
    },
    Row {
        path: "backward",
        expected: "\"regather\" or \"keep\"",
        value: |c| toml(c.backward),
        valid: |_| true,
    },
    Row {
        path: "across_micro_batches",
        expected: "\"regather\", \"keep\" or \"fit\" (keep if the budget allows it)",
        value: |c| toml(c.across_micro_batches),
        valid: |_| true,
    },
    Row {
        path: "reduce_every",
        expected: "\"call\", \"micro_batch\" or \"step\"",
        value: |c| toml(c.reduce_every),
        valid: |_| true,
    },
    Row {
        path: "reduce_delay",
        expected: "a whole number of calls from 1 to 16",
        value: |c| toml(c.reduce_delay),
        valid: |c| Config::REDUCE_DELAY.contains(&c.reduce_delay),
    },
    Row {
        path: "reduce_dtype",
        expected: "\"f32\", \"bf16\" or \"mxfp8\"",
        value: |c| toml(c.reduce_dtype),
        valid: |_| true,
    },
    Row {
        path: "columnwise",
        expected: "\"on_demand\" or \"keep\"",
        value: |c| toml(c.columnwise),
        valid: |_| true,
    },
    Row { path: "derive_ahead", expected: SWITCH, value: |c| toml(c.derive_ahead), valid: |_| true },
    Row { path: "reduce", expected: "\"ordered\" or \"nccl\"", value: |c| toml(c.reduce), valid: |_| true },
    Row {
        path: "transport",
        expected: "\"auto\", \"peer\" or \"nccl\"",
        value: |c| toml(c.transport),
        valid: |_| true,
    },
    Row {
        path: "kernel_exchange",
        expected: "a size such as \"2 MiB\", or \"0 B\" for none but the smallest exchanges; remove it for what suits capture",
        value: |c| c.kernel_exchange.and_then(toml),
        valid: |_| true,
    },
    Row {
        path: "signal_by",
        expected: "\"auto\", \"stream\" or \"copy\"",
        value: |c| toml(c.signal_by),
        valid: |_| true,
    },
    Row {
        path: "deadline_s",
        expected: "a number of seconds from 0.1 to 86400",
        value: |c| toml(c.deadline_s),
        valid: |c| (0.1..=86_400.0).contains(&c.deadline_s),
    },
    Row {
        path: "capture",
        expected: "\"off\", \"step\" or \"segments\"",
        value: |c| toml(c.capture),
        valid: |_| true,
    },
    Row { path: "check", expected: SWITCH, value: |c| toml(c.check), valid: |_| true },
    Row {
        path: "prefetch.depth",
        expected: "a whole number from 0 (gather on demand) to 64",
        value: |c| c.prefetch.depth.and_then(toml),
        valid: |c| match c.prefetch.depth {
            Some(depth) => depth <= Prefetch::MAX_DEPTH,
            None => c.prefetch.bytes.is_some() || c.prefetch.policy.is_some(),
        },
    },
    Row {
        path: "prefetch.bytes",
        expected: "a size above zero of gathered planes in flight, such as \"1.2 GiB\", and neither prefetch.depth nor prefetch.policy beside it",
        value: |c| c.prefetch.bytes.and_then(toml),
        valid: |c| c.prefetch.bytes.is_none_or(|size| size.bytes() > 0),
    },
    Row {
        path: "prefetch.policy",
        expected: "\"auto\", and neither prefetch.depth nor prefetch.bytes beside it",
        value: |c| c.prefetch.policy.and_then(toml),
        valid: |_| true,
    },
    Row {
        path: "prefetch.chunk",
        expected: "a size above zero such as \"64 MiB\", or remove it to gather the weights of a call as one collective",
        value: |c| c.prefetch.chunk.and_then(toml),
        valid: |c| c.prefetch.chunk.is_none_or(|size| size.bytes() > 0),
    },
    Row {
        path: "prefetch.cluster",
        expected: "the machine that prefetch.policy = \"auto\" counts with: a preset such as \"h100x8-ib\", or a cluster file",
        value: |c| toml(&c.prefetch.cluster),
        valid: |c| !c.prefetch.cluster.is_empty(),
    },
    Row {
        path: "memory.budget",
        expected: "a size above zero such as \"1.2 GiB\", or remove it for no limit",
        value: |c| c.memory.budget.and_then(toml),
        valid: |c| c.memory.budget.is_none_or(|size| size.bytes() > 0),
    },
    Row {
        path: "checkpoint.snapshot_bytes",
        expected: "a size such as \"80 GiB\" (0 lets training wait for every save), or remove it for no limit",
        value: |c| c.checkpoint.snapshot_bytes.and_then(toml),
        valid: |_| true,
    },
    Row {
        path: "mesh.dp_replicate",
        expected: "a whole number from 1 to 65536: replicas of the model, which divide the number of ranks",
        value: |c| c.mesh.dp_replicate.and_then(toml),
        valid: |c| c.mesh.dp_replicate.is_none_or(|ranks| (1..=Mesh::MAX_RANKS).contains(&ranks)),
    },
    Row {
        path: "mesh.dp_shard",
        expected: "a whole number from 1 to 65536: ranks that weights are sharded over, with texts of their own; or remove it for what the other axes leave",
        value: |c| c.mesh.dp_shard.and_then(toml),
        valid: |c| c.mesh.dp_shard.is_none_or(|ranks| (1..=Mesh::MAX_RANKS).contains(&ranks)),
    },
    Row {
        path: "mesh.cp",
        expected: "a whole number from 1 to 65536: ranks that share the tokens of a text (context parallelism)",
        value: |c| toml(c.mesh.cp),
        valid: |c| (1..=Mesh::MAX_RANKS).contains(&c.mesh.cp),
    },
    Row {
        path: "mesh.tp",
        expected: "a whole number from 1 to 65536: ranks that compute the parts of one layer (tensor parallelism), which divide the ranks of a replica",
        value: |c| toml(c.mesh.tp),
        valid: |c| (1..=Mesh::MAX_RANKS).contains(&c.mesh.tp),
    },
    Row {
        path: "mesh.ep",
        expected: "a whole number from 1 to 65536: ranks that share the experts of a layer (expert parallelism), which divide the number of ranks",
        value: |c| toml(c.mesh.ep),
        valid: |c| (1..=Mesh::MAX_RANKS).contains(&c.mesh.ep),
    },
    Row {
        path: "mesh.ep_shard",
        expected: "a whole number from 1 to 65536: ranks that one expert is sharded over; or remove it for what mesh.ep leaves of a replica",
        value: |c| c.mesh.ep_shard.and_then(toml),
        valid: |c| c.mesh.ep_shard.is_none_or(|ranks| (1..=Mesh::MAX_RANKS).contains(&ranks)),
    },
    Row {
        path: "mesh.optimizer_instances",
        expected: "a whole number from 1 to 65536: blocks of replicas that each keep all optimizer state, which divide the replicas",
        value: |c| toml(c.mesh.optimizer_instances),
        valid: |c| (1..=Mesh::MAX_RANKS).contains(&c.mesh.optimizer_instances),
    },
    Row {
        path: "mesh.levels",
        expected: "at most three numbers of ranks from 2 up, each a multiple of the one before, such as [8] or [8, 128]; [] for one sum over all ranks",
        value: |c| c.mesh.levels.and_then(toml),
        valid: |_| true,
    },
    Row {
        path: "tune.steps",
        expected: "0 (no tuning) or a whole number from 6 to 20 of a session's first steps",
        value: |c| toml(c.tune.steps),
        valid: |c| c.tune.steps == 0 || (Tune::LEAST_STEPS..=Tune::MOST_STEPS).contains(&c.tune.steps),
    },
    Row {
        path: "quantize.via",
        expected: "\"bf16\" or \"none\"",
        value: |c| toml(c.quantize.via),
        valid: |_| true,
    },
    Row {
        path: "quantize.scaling",
        expected: "\"current\" or \"delayed\" (for weights in per-tensor FP8 formats)",
        value: |c| toml(c.quantize.scaling),
        valid: |_| true,
    },
    Row {
        path: "quantize.amax_history",
        expected: "a whole number of steps from 1 to 65536",
        value: |c| toml(c.quantize.amax_history),
        valid: |c| (1..=65536).contains(&c.quantize.amax_history),
    },
    Row {
        path: "quantize.amax_choice",
        expected: "\"largest\" or \"latest\"",
        value: |c| toml(c.quantize.amax_choice),
        valid: |_| true,
    },
    Row {
        path: "optimizer.mode",
        expected: "\"adamw\" (decoupled weight decay) or \"adam\" (weight decay as part of the gradient)",
        value: |c| toml(c.optimizer.mode),
        valid: |_| true,
    },
    Row {
        path: "optimizer.lr",
        expected: FROM_ZERO,
        value: |c| toml(c.optimizer.lr),
        valid: |c| from_zero(c.optimizer.lr),
    },
    Row {
        path: "optimizer.beta1",
        expected: BELOW_ONE,
        value: |c| toml(c.optimizer.beta1),
        valid: |c| below_one(c.optimizer.beta1),
    },
    Row {
        path: "optimizer.beta2",
        expected: BELOW_ONE,
        value: |c| toml(c.optimizer.beta2),
        valid: |c| below_one(c.optimizer.beta2),
    },
    Row {
        path: "optimizer.eps",
        expected: "a finite number above 0 in 32-bit floating point",
        value: |c| toml(c.optimizer.eps),
        valid: |c| from_zero(c.optimizer.eps) && c.optimizer.eps as f32 > 0.0,
    },
    Row {
        path: "optimizer.weight_decay",
        expected: FROM_ZERO,
        value: |c| toml(c.optimizer.weight_decay),
        valid: |c| from_zero(c.optimizer.weight_decay),
    },
    Row {
        path: "optimizer.bias_correction",
        expected: SWITCH,
        value: |c| toml(c.optimizer.bias_correction),
        valid: |_| true,
    },
    Row {
        path: "optimizer.shard",
        expected: "\"dp_shard\" (each replica keeps all optimizer state) or \"replicas\" (sharded over them too)",
        value: |c| toml(c.optimizer.shard),
        valid: |_| true,
    },
    Row {
        path: "optimizer.moments",
        expected: "\"f32\" or \"bf16\"",
        value: |c| toml(c.optimizer.moments),
        valid: |_| true,
    },
    Row {
        path: "optimizer.masters",
        expected: "\"f32\" or \"bf16_remainder\" (every sharded weight must be bf16 then)",
        value: |c| toml(c.optimizer.masters),
        valid: |_| true,
    },
    Row {
        path: "optimizer.max_norm",
        expected: "a finite number from 1e-18 on, as 32-bit floating point has no squares of smaller gradients, or 0 for no clipping",
        value: |c| toml(c.optimizer.max_norm),
        valid: |c| {
            let most = c.optimizer.max_norm;
            most == 0.0 || from_zero(most) && most >= SMALLEST_NORM
        },
    },
    Row {
        path: "optimizer.max_skipped",
        expected: "a whole number from 1 to 4294967295 of steps in a row, or 0 for any number",
        value: |c| toml(c.optimizer.max_skipped),
        valid: |_| true,
    },
    Row {
        path: "cpu.link.bytes_per_s",
        expected: "a finite number of bytes from 1e3 on, or remove it for a link as fast as memory",
        value: |c| c.cpu.link.bytes_per_s.and_then(toml),
        valid: |c| c.cpu.link.bytes_per_s.is_none_or(|rate| rate.is_finite() && rate >= SLOWEST_LINK),
    },
    Row {
        path: "cpu.link.latency_us",
        expected: "a number of microseconds from 0 to 3.6e9, an hour, and cpu.link.bytes_per_s beside it",
        value: |c| toml(c.cpu.link.latency_us),
        valid: |c| (0.0..=3.6e9).contains(&c.cpu.link.latency_us),
    },
    Row { path: "trace.enabled", expected: SWITCH, value: |c| toml(c.trace.enabled), valid: |_| true },
    Row {
        path: "trace.path",
        expected: "the name of the file to write",
        value: |c| toml(&c.trace.path),
        valid: |c| !c.trace.path.is_empty(),
    },
    Row {
        path: "trace.first_step",
        expected: "a whole number from 0 to 4294967295",
        value: |c| toml(c.trace.first_step),
        valid: |_| true,
    },
    Row {
        path: "trace.steps",
        expected: "a whole number from 1 to 4294967295",
        value: |c| toml(c.trace.steps),
        valid: |c| c.trace.steps > 0,
    },
    Row {
        path: "trace.device",
        expected: "\"auto\", \"cupti\" or \"events\"",
        value: |c| toml(c.trace.device),
        valid: |_| true,
    },
];

pub(super) const RULE_ROWS: &[RuleRow] = &[
    RuleRow {
        field: "match",
        expected: "a pattern of weight names, in which * stands for anything and ? for any one character",
        value: |rule| toml(&rule.pattern),
        valid: |rule| !rule.pattern.is_empty(),
    },
    RuleRow {
        field: "format",
        expected: "a format such as \"nvfp4\" or \"bf16\" (a rule needs this or another key beside `match`)",
        value: |rule| rule.format.and_then(toml),
        valid: |rule| *rule != WeightRule { pattern: rule.pattern.clone(), ..WeightRule::default() },
    },
    RuleRow {
        field: "placement",
        expected: "\"sharded\" or \"replicated\"",
        value: |rule| Value::try_from(rule).ok()?.get("placement").cloned(),
        valid: |_| true,
    },
    RuleRow {
        field: "reuse",
        expected: "\"regather\" or \"keep\"",
        value: |rule| rule.reuse.and_then(toml),
        valid: |_| true,
    },
    RuleRow {
        field: "weight_decay",
        expected: FROM_ZERO,
        value: |rule| rule.weight_decay.and_then(toml),
        valid: |rule| rule.weight_decay.is_none_or(from_zero),
    },
    RuleRow {
        field: "lr_scale",
        expected: FROM_ZERO,
        value: |rule| rule.lr_scale.and_then(toml),
        valid: |rule| rule.lr_scale.is_none_or(from_zero),
    },
    RuleRow {
        field: "whole_matrix",
        expected: "true or false",
        value: |rule| rule.whole_matrix.and_then(toml),
        valid: |_| true,
    },
    RuleRow {
        field: "frozen",
        expected: "true or false",
        value: |rule| rule.frozen.and_then(toml),
        valid: |_| true,
    },
    RuleRow {
        field: "tensor_parallel",
        expected: "\"column\" (each rank of a tensor-parallel group has some rows) or \"row\" (some columns), or of what is not cut \"split_tokens\" or \"alike_tokens\": whether the ranks have other tokens or the same",
        value: |rule| Value::try_from(rule).ok()?.get("tensor_parallel").cloned(),
        valid: |_| true,
    },
    RuleRow {
        field: "segments",
        expected: "a list of 1 to 8 numbers from 1 on: the rows of the matrices that a column-parallel weight stacks",
        value: |rule| rule.segments.as_ref().and_then(toml),
        valid: |rule| {
            let segments = rule.segments.as_deref();
            segments.is_none_or(|rows| !rows.is_empty() && Segments::new(rows).is_some())
        },
    },
    RuleRow {
        field: "expert_parallel",
        expected: "true or false: whether other ranks of an expert-parallel group have other experts in its place",
        value: |rule| rule.expert_parallel.and_then(toml),
        valid: |_| true,
    },
    RuleRow {
        field: "scale_group",
        expected: "the name of a scale group, with at most as many * as `match`, such as \"*.qkv\" for \"*.q_proj\", or \"\" for none",
        value: |rule| rule.scale_group.as_ref().and_then(toml),
        valid: |rule| {
            let stars = |text: &str| text.matches('*').count();
            rule.scale_group.as_deref().is_none_or(|group| stars(group) <= stars(&rule.pattern))
        },
    },
];

fn toml(value: impl Serialize) -> Option<Value> {
    Value::try_from(value).ok()
}

fn from_zero(value: f64) -> bool {
    (value as f32).is_finite() && value >= 0.0
}

fn below_one(value: f64) -> bool {
    value >= 0.0 && (value as f32) < 1.0
}
