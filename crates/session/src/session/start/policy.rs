//! Settings of planner, runner and optimizer, from the configuration.
//!
//! Law: a configuration is turned into a policy in this file only, by callers that have validated it. A policy is
//! not all that a configuration says of a plan, so a user has no use for these and they are hidden from its docs.

use crate::config::{Capture, Config, PrefetchPolicy, Scaling};
use crate::exec::CaptureMode;
use warpweft_plan::layout::{Delayed, OptimizerSettings, Settings, StateLayout};
use warpweft_plan::plan::{GatherStart, Policy};

#[doc(hidden)]
impl From<&Config> for Policy {
    fn from(config: &Config) -> Self {
        let optimizer = &config.optimizer;
        Self {
            prefetch: prefetch(config),
            chunk: config.prefetch.chunk.map(|size| usize::try_from(size.bytes()).unwrap_or(usize::MAX)),
            budget: config.memory.budget.map(|size| usize::try_from(size.bytes()).unwrap_or(usize::MAX)),
            communicators: config.communicators.unwrap_or(Config::WITHOUT_COLLECTIVES),
            backward: config.backward,
            across_micro_batches: config.across_micro_batches,
            reduce_every: config.reduce_every,
            reduce_delay: config.reduce_delay,
            derive_ahead: config.derive_ahead,
            reduce_dtype: config.reduce_dtype,
            reduce: config.reduce,
            columnwise: config.columnwise,
            settings: Settings {
                via: config.quantize.via,
                optimizer: OptimizerSettings {
                    mode: optimizer.mode,
                    epsilon: optimizer.eps as f32,
                    bias_correction: optimizer.bias_correction,
                    max_norm: optimizer.max_norm as f32,
                },
            },
        }
    }
}

fn prefetch(config: &Config) -> GatherStart {
    let chosen = &config.prefetch;
    match (chosen.policy, chosen.bytes) {
        (Some(PrefetchPolicy::Auto), _) => GatherStart::Auto,
        (None, Some(size)) => GatherStart::Bytes(usize::try_from(size.bytes()).unwrap_or(usize::MAX)),
        (None, None) => GatherStart::Depth(chosen.depth.unwrap_or(1)),
    }
}

#[doc(hidden)]
impl From<&Config> for StateLayout {
    fn from(config: &Config) -> Self {
        let quantize = &config.quantize;
        let delayed = Delayed { history: quantize.amax_history, choice: quantize.amax_choice };
        Self {
            moments: config.optimizer.moments,
            shard: config.optimizer.shard,
            masters: config.optimizer.masters,
            custom_states: config.optimizer.custom_states,
            delayed: (quantize.scaling == Scaling::Delayed).then_some(delayed),
        }
    }
}

#[doc(hidden)]
impl From<&Config> for CaptureMode {
    fn from(config: &Config) -> Self {
        match config.capture {
            Capture::Off => Self::Off,
            Capture::Step | Capture::Segments => Self::Captured,
        }
    }
}
