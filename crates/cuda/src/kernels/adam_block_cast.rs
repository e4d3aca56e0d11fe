//! Adam and AdamW over masters that are cast to FP8 in blocks of 128x128: `kernels/adam_block_cast.cu`.

use bytemuck::{Pod, Zeroable};

use super::adam_operand::{AdamOperand, MasterCast, MasterState, RuleArguments};
use super::check::{element_aligned, narrow, present, scale_pitch};
use super::launch::KernelLaunch;
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Fp8Block, Fp8Element, Fp8Tile, Orientation, ScaleRule, Shape, Via};
use warpweft_plan::policy::{AdamMode, Moments};

/// `AdamBlockCastTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    master: DeviceAddress,
    exp_avg: DeviceAddress,
    exp_avg_sq: DeviceAddress,
    gradient: DeviceAddress,
    hyperparameters: DeviceAddress,
    data: DeviceAddress,
    plane: DeviceAddress,
    tensor_scale: DeviceAddress,
    rows: u32,
    cols: u32,
    pitch: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 80);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    rule: RuleArguments,
    largest_code: f32,
    smallest_amax: f32,
    power_of_two: u32,
    via_bf16: u16,
    e5m2: u16,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 152);

/// Rows and columns of a block, `SIDE` of the kernels.
const SIDE: usize = 128;
/// `TILE_THREADS` of the kernels.
const TILE_THREADS: u32 = 512;

impl TensorArguments {
    /// The arguments of an operand, and how many blocks it has.
    fn of(operand: &AdamOperand, cast: &MasterCast, moments: Moments) -> Result<(Self, u64), CudaFailure> {
        let MasterCast { master, shape, format, data, scale, tensor_scale, .. } = *cast;
        let Shape { rows, cols } = shape;
        if operand.elements != shape.elements() {
            let found = operand.elements;
            return Err(CudaFailure::Refused(format!("a master of {shape} has {found} elements")));
        }
        let aligned = operand.check(moments, &[("a master", master, 4), ("a data plane", data, 1)])?;
        for (what, address) in [("a scale plane", scale), ("a tensor's scale", tensor_scale)] {
            present(what, address)?;
            element_aligned(what, address, 4)?;
        }
        let arguments = Self {
            master,
            exp_avg: operand.exp_avg,
            exp_avg_sq: operand.exp_avg_sq,
            gradient: operand.main_grad,
            hyperparameters: operand.hyperparameters,
            data,
            plane: scale,
            tensor_scale,
            rows: narrow("rows", rows)?,
            cols: narrow("columns", cols)?,
            pitch: narrow("scale columns", scale_pitch(format, Orientation::Rowwise, shape))?,
            aligned: u32::from(aligned && cols.is_multiple_of(4)),
        };
        // The tensor's scale is written even if there is no block.
        let blocks = rows.div_ceil(SIDE) as u64 * cols.div_ceil(SIDE) as u64;
        Ok((arguments, blocks.max(1)))
    }
}

/// A launch whose operands are all cast to `format`.
pub(super) fn launch(
    kernels: &Kernels,
    (mode, moments, format, via): (AdamMode, Moments, Format, Via),
    operands: &[AdamOperand],
    rule: RuleArguments,
) -> Result<KernelLaunch, CudaFailure> {
    let refused = || CudaFailure::Refused(format!("no launch casts to {format} what it updates"));
    let Format::Fp8Block(Fp8Block { tile: Fp8Tile::Tile128x128, element, scale, epsilon }) = format else {
        return Err(refused());
    };
    let name = match (mode, moments) {
        (AdamMode::AdamW, Moments::F32) => c"adamw_cast_block128_f32",
        (AdamMode::AdamW, Moments::Bf16) => c"adamw_cast_block128_bf16",
        (AdamMode::Adam, Moments::F32) => c"adam_cast_block128_f32",
        (AdamMode::Adam, Moments::Bf16) => c"adam_cast_block128_bf16",
    };
    let tensor = |operand: &AdamOperand| match &operand.master {
        MasterState::Cast(cast) => TensorArguments::of(operand, cast, moments),
        MasterState::Whole(_) | MasterState::Amax(_) | MasterState::Split { .. } => Err(refused()),
    };
    let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, _>>()?;
    let table = TileTable::new(&tensors, 0)?;
    let arguments = Arguments {
        tiles: table.tiles,
        tensors: table.descriptors,
        rule,
        largest_code: element.largest(),
        smallest_amax: epsilon.value(),
        power_of_two: u32::from(scale == ScaleRule::PowerOfTwo),
        via_bf16: u16::from(via == Via::Bf16),
        e5m2: u16::from(element == Fp8Element::E5m2),
        only: only(&tensors),
    };
    let function = kernels.function(Family::AdamBlockCast, name)?;
    Ok(KernelLaunch::new(function, table.blocks(), TILE_THREADS, arguments, Some(table.table)))
}

#[cfg(test)]
mirrors!(Family::AdamBlockCast, SIDE, TILE_THREADS);
