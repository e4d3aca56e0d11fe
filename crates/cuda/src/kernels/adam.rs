//! Adam and AdamW: `kernels/adam.cu`; `adam_block_cast.rs` for what is cast in blocks, and `adam_amax.rs` for amaxes.

use bytemuck::{Pod, Zeroable};

use super::adam_operand::{AdamOperand, Bounds, MasterState, RuleArguments};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use super::{adam_amax, adam_block_cast};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Via};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::policy::{AdamMode, Moments};

/// `AdamTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    master: DeviceAddress,
    second: DeviceAddress,
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
    rule: RuleArguments,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 120);

/// What all operands of a launch have alike: which kernel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Whole,
    Split,
    Amax(Format, Via),
    Cast(Format, Via),
}

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

impl AdamOperand {
    fn kind(&self) -> Kind {
        match self.master {
            MasterState::Whole(_) => Kind::Whole,
            MasterState::Amax(amax) => Kind::Amax(amax.format, amax.via),
            MasterState::Cast(cast) => Kind::Cast(cast.format, cast.via),
            MasterState::Split { .. } => Kind::Split,
        }
    }

    fn arguments(&self, moments: Moments) -> Result<(TensorArguments, u64), CudaFailure> {
        let master = |address, bytes| ("a master", address, bytes);
        let parts: &[_] = match self.master {
            MasterState::Whole(whole) => &[master(whole, 4)],
            MasterState::Amax(amax) => &[master(amax.master, 4)],
            MasterState::Split { shard, remainder } => &[master(shard, 2), ("a remainder", remainder, 2)],
            MasterState::Cast(cast) => {
                let element = if cast.format == Format::Bf16 { 2 } else { 4 };
                &[master(cast.master, 4), ("a data plane", cast.data, element)]
            }
        };
        let aligned = self.check(moments, parts)?;
        let address = |place: usize| parts.get(place).map_or(DeviceAddress::NULL, |(_, address, _)| *address);
        let descriptor = TensorArguments {
            master: address(0),
            second: address(1),
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
    /// One optimizer step on the state of many weights, and amaxes or the cast of their masters where these are asked
    /// for. A vote that skips leaves everything as it is.
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), read when the launch runs. The word of `bounds` may be
    /// the host's, which then reads it as an atomic; launches on one stream may share it.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for masters of several kinds or for several formats, a format for which there is no
    /// such launch, an address that is missing or misaligned.
    pub fn adam(
        &self,
        settings: &OptimizerSettings,
        moments: Moments,
        operands: &[AdamOperand],
        vote: DeviceAddress,
        bounds: Bounds,
    ) -> Result<KernelLaunch, CudaFailure> {
        let rule = RuleArguments::new(settings, vote, bounds)?;
        let kind = operands.first().map_or(Kind::Whole, AdamOperand::kind);
        if operands.iter().any(|operand| operand.kind() != kind) {
            return Err(CudaFailure::Refused(
                "masters of one launch are all whole, all split, or all cast alike".into(),
            ));
        }
        let name = match (settings.mode, kind, moments) {
            (AdamMode::AdamW, Kind::Whole, Moments::F32) => c"adamw_f32_f32",
            (AdamMode::AdamW, Kind::Whole, Moments::Bf16) => c"adamw_f32_bf16",
            (AdamMode::AdamW, Kind::Split, Moments::F32) => c"adamw_split_f32",
            (AdamMode::AdamW, Kind::Split, Moments::Bf16) => c"adamw_split_bf16",
            (AdamMode::AdamW, Kind::Cast(Format::Bf16, _), Moments::F32) => c"adamw_to_bf16_f32",
            (AdamMode::AdamW, Kind::Cast(Format::Bf16, _), Moments::Bf16) => c"adamw_to_bf16_bf16",
            (AdamMode::AdamW, Kind::Cast(Format::F32, _), Moments::F32) => c"adamw_to_f32_f32",
            (AdamMode::AdamW, Kind::Cast(Format::F32, _), Moments::Bf16) => c"adamw_to_f32_bf16",
            (AdamMode::Adam, Kind::Whole, Moments::F32) => c"adam_f32_f32",
            (AdamMode::Adam, Kind::Whole, Moments::Bf16) => c"adam_f32_bf16",
            (AdamMode::Adam, Kind::Split, Moments::F32) => c"adam_split_f32",
            (AdamMode::Adam, Kind::Split, Moments::Bf16) => c"adam_split_bf16",
            (AdamMode::Adam, Kind::Cast(Format::Bf16, _), Moments::F32) => c"adam_to_bf16_f32",
            (AdamMode::Adam, Kind::Cast(Format::Bf16, _), Moments::Bf16) => c"adam_to_bf16_bf16",
            (AdamMode::Adam, Kind::Cast(Format::F32, _), Moments::F32) => c"adam_to_f32_f32",
            (AdamMode::Adam, Kind::Cast(Format::F32, _), Moments::Bf16) => c"adam_to_f32_bf16",
            (mode, Kind::Amax(format, via), moments) => {
                return adam_amax::launch(self, (mode, moments, format, via), operands, rule);
            }
            (mode, Kind::Cast(format, via), moments) => {
                return adam_block_cast::launch(self, (mode, moments, format, via), operands, rule);
            }
        };
        let tensors: Vec<_> =
            operands.iter().map(|operand| operand.arguments(moments)).collect::<Result<_, _>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments =
            Arguments { tiles: table.tiles, tensors: table.descriptors, rule, only: only(&tensors) };
        let function = self.function(Family::Adam, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Adam, GROUPS_F32, GROUPS_BF16);
