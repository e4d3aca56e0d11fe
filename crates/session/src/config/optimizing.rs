//! Settings of the optimizer: Adam, its state, and the quantization of new masters.
//!
//! Law: as of [`super::choices`]: plain data, judged by [`Config::validate`](super::Config::validate).

use serde::{Deserialize, Serialize};

use warpweft_format::{AmaxChoice, Via};
use warpweft_plan::policy::{AdamMode, Masters, Moments, OptimizerShard};

/// The source of the scale of a weight in a per-tensor FP8 format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scaling {
    /// From the amax of the masters that are cast: the cast waits for the maximum over the ranks.
    #[default]
    Current,
    /// From the amaxes of earlier steps: the cast waits for nobody, and values that grew past the
    /// scale saturate.
    Delayed,
}

/// Quantization of masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quantize {
    /// The rounding applied to masters before amax and cast.
    pub via: Via,
    /// Where the scales of all weights in per-tensor FP8 formats come from. With delayed scaling there must be
    /// such a weight.
    pub scaling: Scaling,
    /// Delayed scaling: how many steps an amax is remembered, 1 to 65536.
    pub amax_history: u32,
    /// Delayed scaling: which of the remembered amaxes determines the scale.
    pub amax_choice: AmaxChoice,
}

impl Default for Quantize {
    fn default() -> Self {
        Self {
            via: Via::default(),
            scaling: Scaling::default(),
            amax_history: 16,
            amax_choice: AmaxChoice::default(),
        }
    }
}

/// The optimizer, Adam unless a custom one takes its place, and gradient clipping. All numbers are used as f32, and
/// validated as such.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// How weight decay enters.
    pub mode: AdamMode,
    /// Learning rate, from 0 on. It, betas and weight decay hold until `Session::set_hyperparameters` says others.
    pub lr: f64,
    /// Decay of the first moment, from 0 to below 1.
    pub beta1: f64,
    /// Decay of the second moment, from 0 to below 1.
    pub beta2: f64,
    /// Added to the root of the corrected second moment, above 0.
    pub eps: f64,
    /// Weight decay λ, from 0 on.
    pub weight_decay: f64,
    /// Whether the moments are divided by `1 − β^t`, which undoes their start from zero.
    pub bias_correction: bool,
    /// Over which ranks masters and optimizer state are sharded. With `"replicas"` a rank of one of several replicas
    /// keeps and updates some rows of its part of a weight, and every step begins with gathers over the replicas.
    pub shard: OptimizerShard,
    /// How both moments are stored.
    pub moments: Moments,
    /// How the masters of sharded weights are stored.
    pub masters: Masters,
    /// How many lists of f32 state a custom optimizer keeps beside every master, 0 to 8; `None` for Adam. It is no
    /// key of a file: `SessionBuilder::optimizer` sets it, and whoever plans for a custom optimizer without closures.
    /// It gets learning rate, weight decay, betas and gradients clipped by `max_norm`; mode, eps and bias correction
    /// are Adam's.
    #[serde(skip)]
    pub custom_states: Option<u8>,
    /// Largest norm of the whole gradient; larger ones are scaled down to it. 0 turns clipping off.
    pub max_norm: f64,
    /// How many steps in a row may be skipped, for a gradient that is not finite and without a loss scale: the step
    /// that reaches this number is an error. 0 for any number.
    pub max_skipped: u32,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            mode: AdamMode::default(),
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            bias_correction: true,
            shard: OptimizerShard::default(),
            moments: Moments::default(),
            masters: Masters::default(),
            custom_states: None,
            max_norm: 0.0,
            max_skipped: 8,
        }
    }
}
