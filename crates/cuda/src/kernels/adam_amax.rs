//! Adam and AdamW over masters whose amaxes are wanted: `kernels/adam_amax.cu`.

use bytemuck::{Pod, Zeroable};

use super::adam_operand::{AdamOperand, MasterAmax, MasterState, RuleArguments};
use super::check::{divides, element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS, WARPS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Nvfp4Block, Via};
use warpweft_plan::policy::{AdamMode, Moments};

/// `AdamAmaxTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    master: DeviceAddress,
    exp_avg: DeviceAddress,
    exp_avg_sq: DeviceAddress,
    gradient: DeviceAddress,
    hyperparameters: DeviceAddress,
    block_amax: DeviceAddress,
    tensor_amax: DeviceAddress,
    rows: u32,
    cols: u32,
    grid_rows: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 72);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    rule: RuleArguments,
    pending: DeviceAddress,
    via_bf16: u32,
    reserved: u32,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 144);

/// Rows and columns of a tile, `TILE_ROWS` of the kernels.
const TILE_ROWS: usize = 16;
/// `AMAX_FLAT_TILE` of the kernels.
const AMAX_FLAT_TILE: usize = 16384;
/// Bytes of `Pending`, one per tensor.
const PENDING: usize = 8;

impl TensorArguments {
    /// The arguments of an operand, and how many thread blocks work on it.
    fn of(
        operand: &AdamOperand,
        amax: &MasterAmax,
        (moments, tiled): (Moments, bool),
    ) -> Result<(Self, u64), CudaFailure> {
        let MasterAmax { master, shape, stored_rows, format, block_amax, tensor_amax, .. } = *amax;
        divides(format, shape)?;
        if operand.elements != shape.elements() {
            let found = operand.elements;
            return Err(CudaFailure::Refused(format!("a master of {shape} has {found} elements")));
        }
        let aligned = operand.check(moments, &[("a master", master, 4)])?;
        present("a tensor's amax", tensor_amax)?;
        element_aligned("a tensor's amax", tensor_amax, 4)?;
        element_aligned("block amaxes", block_amax, 4)?;
        let grid_rows = stored_rows.max(shape.rows).div_ceil(TILE_ROWS);
        if tiled && grid_rows > 0 {
            present("the block amaxes", block_amax)?;
        }
        let arguments = Self {
            master,
            exp_avg: operand.exp_avg,
            exp_avg_sq: operand.exp_avg_sq,
            gradient: operand.main_grad,
            hyperparameters: operand.hyperparameters,
            block_amax,
            tensor_amax,
            rows: narrow("rows", shape.rows)?,
            cols: narrow("columns", shape.cols)?,
            grid_rows: narrow("blocks", grid_rows)?,
            aligned: u32::from(aligned),
        };
        let blocks = if tiled {
            (grid_rows as u64 * shape.cols.div_ceil(128) as u64).div_ceil(WARPS)
        } else {
            shape.elements().div_ceil(AMAX_FLAT_TILE) as u64
        };
        // The tensor's amax is written even if there is nothing to update.
        Ok((arguments, blocks.max(1)))
    }
}

/// A launch whose operands' amaxes are all for `format`.
pub(super) fn launch(
    kernels: &Kernels,
    (mode, moments, format, via): (AdamMode, Moments, Format, Via),
    operands: &[AdamOperand],
    rule: RuleArguments,
) -> Result<KernelLaunch, CudaFailure> {
    let refused = || CudaFailure::Refused(format!("no launch takes amaxes for {format} of what it updates"));
    let tiled = match format {
        Format::Nvfp4(Nvfp4Block::Tile16x16) => true,
        Format::Fp8Tensor(_) => false,
        Format::F32 | Format::Bf16 | Format::Nvfp4(_) | Format::Fp8Block(_) | Format::Mxfp8 => {
            return Err(refused());
        }
    };
    let name = match (mode, tiled, moments) {
        (AdamMode::AdamW, true, Moments::F32) => c"adamw_amax_tile16_f32",
        (AdamMode::AdamW, true, Moments::Bf16) => c"adamw_amax_tile16_bf16",
        (AdamMode::AdamW, false, Moments::F32) => c"adamw_amax_tensor_f32",
        (AdamMode::AdamW, false, Moments::Bf16) => c"adamw_amax_tensor_bf16",
        (AdamMode::Adam, true, Moments::F32) => c"adam_amax_tile16_f32",
        (AdamMode::Adam, true, Moments::Bf16) => c"adam_amax_tile16_bf16",
        (AdamMode::Adam, false, Moments::F32) => c"adam_amax_tensor_f32",
        (AdamMode::Adam, false, Moments::Bf16) => c"adam_amax_tensor_bf16",
    };
    let tensor = |operand: &AdamOperand| match &operand.master {
        MasterState::Amax(amax) => TensorArguments::of(operand, amax, (moments, tiled)),
        MasterState::Whole(_) | MasterState::Cast(_) | MasterState::Split { .. } => Err(refused()),
    };
    let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, _>>()?;
    let table = TileTable::new(&tensors, tensors.len() * PENDING)?;
    let arguments = Arguments {
        tiles: table.tiles,
        tensors: table.descriptors,
        rule,
        pending: table.workspace,
        via_bf16: u32::from(via == Via::Bf16),
        reserved: 0,
        only: only(&tensors),
    };
    let function = kernels.function(Family::AdamAmax, name)?;
    Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
}

#[cfg(test)]
mirrors!(Family::AdamAmax, TILE_ROWS, AMAX_FLAT_TILE);
