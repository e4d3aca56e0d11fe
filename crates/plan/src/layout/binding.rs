//! The part of a plan that a backend gets.
//!
//! Law: a binding is all a backend needs to turn ops into launches on one rank, and it only borrows. Its
//! settings are constant for the life of a plan; what changes from step to step is in the arena.

use serde::Serialize;

use super::arena::ArenaLayout;
use super::weights::Weights;
use crate::model::{BufferSpec, Call};
use crate::op::Op;
use crate::policy::AdamMode;
use warpweft_base::id::{LaneId, RankId};
use warpweft_format::Via;

/// The optimizer's constants; what changes from step to step is in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct OptimizerSettings {
    /// How weight decay enters.
    pub mode: AdamMode,
    /// ε, added after the square root of the corrected second moment.
    pub epsilon: f32,
    /// Whether the moments are divided by `1 − β^t`.
    pub bias_correction: bool,
    /// Gradients are scaled down to this global norm; 0 turns clipping off.
    pub max_norm: f32,
}

/// Constants of a plan that backends need and the planner does not interpret.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// Rounding of masters before amax and cast.
    pub via: Via,
    /// Optimizer constants.
    pub optimizer: OptimizerSettings,
}

/// Everything a backend needs to turn a plan's ops into launches on one rank.
#[derive(Clone, Copy, Debug)]
pub struct Binding<'plan> {
    /// The rank to bind for.
    pub rank: RankId,
    /// The name of the program whose step it is, or `prologue`.
    pub program: &'plan str,
    /// Slots and their places.
    pub arena: &'plan ArenaLayout,
    /// Weights, buckets and mesh.
    pub weights: &'plan Weights,
    /// How often the step repeats the program's calls.
    pub micro_batches: u32,
    /// The program's buffers, in the order of their ids.
    pub buffers: &'plan [BufferSpec],
    /// The calls of the step.
    pub calls: &'plan [Call],
    /// The ops in issue order, each with its lane.
    pub ops: &'plan [(Op, LaneId)],
    /// Number of events that fences of the plan wait for.
    pub events: usize,
    /// Constants.
    pub settings: Settings,
    /// Whether tasks must be timed even where that costs something.
    pub timed: bool,
    /// Whether what a call overwrites is spoiled before its closure gets it, so that what the closure leaves
    /// out shows.
    pub spoiled: bool,
}
