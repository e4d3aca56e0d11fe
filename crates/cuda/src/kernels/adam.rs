//! Adam and AdamW: `kernels/adam.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::policy::{AdamMode, Moments};

/// Where the master of a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MasterState {
    /// f32.
    Whole(DeviceAddress),
    /// In two halves of 16 bits: see [`split_master`](warpweft_format::split_master).
    Split {
        /// The bf16 shard.
        shard: DeviceAddress,
        /// What it lacks, i16.
        remainder: DeviceAddress,
    },
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

/// `AdamTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    master: DeviceAddress,
    remainder: DeviceAddress,
    exp_avg: DeviceAddress,
    exp_avg_sq: DeviceAddress,
    gradient: DeviceAddress,
    hyperparameters: DeviceAddress,
    count: u64,
    aligned: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 64);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    vote: DeviceAddress,
    diverged: DeviceAddress,
    epsilon: f32,
    bias_correction: u32,
    largest_master: f32,
    largest_moment: f32,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 120);

/// Groups of four elements that a thread has, the same as in the kernels.
const GROUPS_F32: u32 = 1;
const GROUPS_BF16: u32 = 2;

/// Elements of a tile: `TILE` of the kernels.
const fn tile(moments: Moments) -> u64 {
    let groups = match moments {
        Moments::F32 => GROUPS_F32,
        Moments::Bf16 => GROUPS_BF16,
    };
    (groups * 4 * THREADS) as u64
}

/// Bytes of one element of master and of a moment.
fn element_bytes(split: bool, moments: Moments) -> (u64, u64) {
    let moment = match moments {
        Moments::F32 => 4,
        Moments::Bf16 => 2,
    };
    (if split { 2 } else { 4 }, moment)
}

impl AdamOperand {
    fn arguments(&self, split: bool, moments: Moments) -> Result<(TensorArguments, u64), CudaFailure> {
        let (master, remainder) = match self.master {
            MasterState::Whole(master) if !split => (master, None),
            MasterState::Split { shard, remainder } if split => (shard, Some(remainder)),
            _ => return Err(CudaFailure::Refused("masters of one launch are all whole or all split".into())),
        };
        let (master_bytes, moment_bytes) = element_bytes(split, moments);
        let parts = [
            ("a master", Some(master), master_bytes),
            ("a remainder", remainder, 2),
            ("a first moment", Some(self.exp_avg), moment_bytes),
            ("a second moment", Some(self.exp_avg_sq), moment_bytes),
            ("a main grad", Some(self.main_grad), 4),
        ];
        let mut aligned = true;
        for (what, address, bytes) in parts {
            let Some(address) = address else { continue };
            present(what, address)?;
            element_aligned(what, address, bytes)?;
            aligned &= address.number().is_multiple_of(4 * bytes);
        }
        present("hyperparameters", self.hyperparameters)?;
        element_aligned("hyperparameters", self.hyperparameters, 16)?;
        let descriptor = TensorArguments {
            master,
            remainder: remainder.unwrap_or(DeviceAddress::NULL),
            exp_avg: self.exp_avg,
            exp_avg_sq: self.exp_avg_sq,
            gradient: self.main_grad,
            hyperparameters: self.hyperparameters,
            count: self.elements as u64,
            aligned: u32::from(aligned),
            reserved: 0,
        };
        Ok((descriptor, (self.elements as u64).div_ceil(tile(moments))))
    }
}

impl Kernels {
    /// One optimizer step on the state of many weights. A vote that skips leaves everything as it is.
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), read when the launch runs. The word of `bounds` may be
    /// the host's, which then reads it as an atomic; launches on one stream may share it.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for masters of both kinds, an address that is missing or misaligned.
    pub fn adam(
        &self,
        settings: &OptimizerSettings,
        moments: Moments,
        operands: &[AdamOperand],
        vote: DeviceAddress,
        bounds: Bounds,
    ) -> Result<KernelLaunch, CudaFailure> {
        element_aligned("the word of divergence", bounds.diverged, 4)?;
        present("the vote", vote)?;
        element_aligned("the vote", vote, 4)?;
        let split =
            operands.first().is_some_and(|operand| matches!(operand.master, MasterState::Split { .. }));
        let name = match (settings.mode, split, moments) {
            (AdamMode::AdamW, false, Moments::F32) => c"adamw_f32_f32",
            (AdamMode::AdamW, false, Moments::Bf16) => c"adamw_f32_bf16",
            (AdamMode::AdamW, true, Moments::F32) => c"adamw_split_f32",
            (AdamMode::AdamW, true, Moments::Bf16) => c"adamw_split_bf16",
            (AdamMode::Adam, false, Moments::F32) => c"adam_f32_f32",
            (AdamMode::Adam, false, Moments::Bf16) => c"adam_f32_bf16",
            (AdamMode::Adam, true, Moments::F32) => c"adam_split_f32",
            (AdamMode::Adam, true, Moments::Bf16) => c"adam_split_bf16",
        };
        let tensors: Vec<_> =
            operands.iter().map(|operand| operand.arguments(split, moments)).collect::<Result<_, _>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            vote,
            diverged: bounds.diverged,
            epsilon: settings.epsilon,
            bias_correction: u32::from(settings.bias_correction),
            largest_master: bounds.master,
            largest_moment: bounds.moment,
            only: only(&tensors),
        };
        let function = self.function(Family::Adam, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Adam, GROUPS_F32, GROUPS_BF16);
