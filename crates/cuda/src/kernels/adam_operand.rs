//! What every launch of Adam works on: masters with state and gradients, and the rule that all of them follow.
//!
//! Law: it knows no kernel. What is the same for all of them is checked here, once.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Shape, Via};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::policy::Moments;

/// Where the master of a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterState {
    /// f32.
    Whole(DeviceAddress),
    /// f32, and where its amaxes go.
    Amax(MasterAmax),
    /// f32, and the planes that it is cast to.
    Cast(MasterCast),
    /// In two halves of 16 bits: see [`split_master`](warpweft_format::split_master).
    Split {
        /// The bf16 shard.
        shard: DeviceAddress,
        /// What it lacks, i16.
        remainder: DeviceAddress,
    },
}

/// A master whose amaxes are taken by the launch that updates it: what `Kernels::partial_amax` would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterAmax {
    /// f32, row-major.
    pub master: DeviceAddress,
    /// Its shape.
    pub shape: Shape,
    /// Rows that the block amaxes cover: those of the shape, or more. Blocks beyond it get 0.
    pub stored_rows: usize,
    /// The format that its amaxes are for.
    pub format: Format,
    /// How it is rounded before.
    pub via: Via,
    /// Rowwise block amaxes, f32, written; null for a format without.
    pub block_amax: DeviceAddress,
    /// One f32, written.
    pub tensor_amax: DeviceAddress,
}

/// A master that is cast by the launch that updates it: what `Kernels::partial_amax`, `Kernels::fused_scale` and
/// `Kernels::partial_cast` would make of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterCast {
    /// f32, row-major.
    pub master: DeviceAddress,
    /// Its shape.
    pub shape: Shape,
    /// To what it is cast; [`Format::casts_by_blocks`].
    pub format: Format,
    /// How it is rounded before.
    pub via: Via,
    /// The data plane, written.
    pub data: DeviceAddress,
    /// The compact scale plane, written; null for a format without scales.
    pub scale: DeviceAddress,
    /// One f32, written; null for a format without scales.
    pub tensor_scale: DeviceAddress,
}

/// Optimizer state of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdamOperand {
    /// Master, updated. All operands have the same kind.
    pub master: MasterState,
    /// First moment, updated.
    pub exp_avg: DeviceAddress,
    /// Second moment, updated.
    pub exp_avg_sq: DeviceAddress,
    /// Main grad, f32.
    pub main_grad: DeviceAddress,
    /// One [`Hyperparameters`](warpweft_plan::model::Hyperparameters), read when the launch runs.
    pub hyperparameters: DeviceAddress,
    /// Elements of each.
    pub elements: usize,
}

/// From what training goes on, and where a launch says that it does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The largest magnitude of a master.
    pub master: f32,
    /// The largest magnitude of a moment.
    pub moment: f32,
    /// One u32, or null: becomes 1 where a value is larger or no number, and else stays as it is.
    pub diverged: DeviceAddress,
}

/// `Rule` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RuleArguments {
    vote: DeviceAddress,
    diverged: DeviceAddress,
    epsilon: f32,
    bias_correction: u32,
    largest_master: f32,
    largest_moment: f32,
}
const _: () = assert!(size_of::<RuleArguments>() == 32);

impl RuleArguments {
    /// `vote` is read when the launch runs.
    pub(super) fn new(
        settings: &OptimizerSettings,
        vote: DeviceAddress,
        bounds: Bounds,
    ) -> Result<Self, CudaFailure> {
        element_aligned("the word of divergence", bounds.diverged, 4)?;
        present("the vote", vote)?;
        element_aligned("the vote", vote, 4)?;
        Ok(Self {
            vote,
            diverged: bounds.diverged,
            epsilon: settings.epsilon,
            bias_correction: u32::from(settings.bias_correction),
            largest_master: bounds.master,
            largest_moment: bounds.moment,
        })
    }
}

/// Bytes of one element of a moment.
const fn moment_bytes(moments: Moments) -> u64 {
    match moments {
        Moments::F32 => 4,
        Moments::Bf16 => 2,
    }
}

impl AdamOperand {
    /// Checks what an operand of any kind has, and these parts of it: what, where, and bytes of an element. Returns
    /// whether four elements of each may be read at once.
    pub(super) fn check(
        &self,
        moments: Moments,
        parts: &[(&str, DeviceAddress, u64)],
    ) -> Result<bool, CudaFailure> {
        let moment = moment_bytes(moments);
        let state = [
            ("a first moment", self.exp_avg, moment),
            ("a second moment", self.exp_avg_sq, moment),
            ("a main grad", self.main_grad, 4),
        ];
        let mut aligned = true;
        for (what, address, bytes) in state.iter().chain(parts) {
            present(what, *address)?;
            element_aligned(what, *address, *bytes)?;
            aligned &= address.number().is_multiple_of(4 * bytes);
        }
        present("hyperparameters", self.hyperparameters)?;
        element_aligned("hyperparameters", self.hyperparameters, 16)?;
        Ok(aligned)
    }
}
