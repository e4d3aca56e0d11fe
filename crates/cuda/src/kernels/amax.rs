//! Partial amax: `kernels/amax.cu`.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::fragment::{FragmentArguments, MasterFragment};
use super::launch::{KernelLaunch, THREADS, WARPS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Fp8Tile, Nvfp4Block, Shape, Via};

/// One master whose amaxes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmaxOperand {
    /// The values.
    pub fragment: MasterFragment,
    /// Rows the block amaxes cover: those of the matrix, or more. Blocks beyond the matrix get 0.
    pub stored_rows: usize,
    /// Rowwise block amaxes, f32, [`Format::amax_blocks`] of the stored rows; null if there are none or they
    /// are not wanted (MXFP8).
    pub rowwise: DeviceAddress,
    /// Columnwise block amaxes (MXFP8), or null.
    pub columnwise: DeviceAddress,
    /// The largest magnitude of the fragment, one f32.
    pub tensor_amax: DeviceAddress,
}

/// `AmaxTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    fragment: FragmentArguments,
    rowwise: DeviceAddress,
    columnwise: DeviceAddress,
    tensor_amax: DeviceAddress,
    grid_rows: u32,
    grid_cols: u32,
    columnwise_rows: u32,
    columnwise_cols: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 80);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    pending: DeviceAddress,
    vote: DeviceAddress,
    via_bf16: u32,
    passes: u32,
    only: TensorArguments,
}

/// `FLAT_PASS` of the kernels.
const FLAT_PASS: u64 = 16384;
/// Blocks that a large device runs at one time. A launch with no more than that makes one pass per block.
const AT_ONCE: u64 = 512;
/// `MOST_PASSES` of the kernels, a power of two.
const MOST_PASSES: u64 = 2;
/// Bytes of `Pending`, one per tensor.
const PENDING: usize = 8;

/// How a kernel cuts a tensor into blocks of the format and tiles of the grid.
struct Cut {
    kernel: &'static CStr,
    /// Rows and columns of a block of the format; 0 if only the tensor counts.
    block: (usize, usize),
    /// Rows that a warp takes in a pass, of 128 columns; 0 if a thread block takes a block of the format.
    height: usize,
}

impl AmaxOperand {
    /// The shape that the block amaxes cover.
    fn stored(&self) -> Shape {
        let Shape { rows, cols } = self.fragment.shape;
        Shape::new(self.stored_rows.max(rows), cols)
    }
}

impl Cut {
    fn of(format: Format) -> Result<Self, CudaFailure> {
        let (kernel, block, height) = match format {
            Format::Nvfp4(Nvfp4Block::Tile16x16) => (c"amax_tile16", (16, 16), 16),
            Format::Nvfp4(Nvfp4Block::Row1x16) => (c"amax_row16", (1, 16), 8),
            Format::Fp8Block(block) => match block.tile {
                Fp8Tile::Tile128x128 => (c"amax_tile128", (128, 128), 0),
                Fp8Tile::Row1x128 => (c"amax_row128", (1, 128), 8),
            },
            Format::Mxfp8 => (c"amax_mxfp8", (1, 32), 8),
            Format::Fp8Tensor(_) => (c"amax_tensor", (0, 0), 0),
            Format::F32 | Format::Bf16 => {
                return Err(CudaFailure::Refused(format!("{format} has no scales, hence no amax")));
            }
        };
        Ok(Self { kernel, block, height })
    }

    /// Rows and columns of the block grid.
    fn grid(&self, shape: Shape) -> (usize, usize) {
        match self.block {
            (0, _) => (0, 0),
            (height, width) => (shape.rows.div_ceil(height), shape.cols.div_ceil(width)),
        }
    }

    /// Thread blocks of an operand that make `passes` passes each.
    fn tiles(&self, operand: &AmaxOperand, passes: u64) -> u64 {
        let stored = operand.stored();
        let (grid_rows, grid_cols) = self.grid(stored);
        let across = |width: usize| grid_cols.div_ceil(128 / width) as u64;
        let tiles = match (self.block, self.height) {
            ((0, _), _) => (operand.fragment.shard.len as u64).div_ceil(FLAT_PASS * passes),
            (_, 0) => (grid_rows as u64 * grid_cols as u64).div_ceil(passes),
            // Warps that share 32 rows are in one thread block.
            ((_, width), 8) => (stored.rows.div_ceil(32) as u64 * across(width)).div_ceil(2 * passes),
            ((_, width), height) => {
                ((stored.rows as u64).div_ceil(height as u64 * passes) * across(width)).div_ceil(WARPS)
            }
        };
        // The tensor's amax is written even if there is nothing to read.
        tiles.max(1)
    }

    /// The fewest passes with which all thread blocks run at one time, or the most that there are.
    fn passes(&self, operands: &[AmaxOperand]) -> u64 {
        let blocks = |passes| operands.iter().map(|operand| self.tiles(operand, passes)).sum::<u64>();
        let mut passes = 1;
        while passes < MOST_PASSES && blocks(passes) > AT_ONCE {
            passes *= 2;
        }
        passes
    }
}

impl Kernels {
    /// Amaxes of every block of every fragment, and of every fragment (see
    /// [`partial_amax`](warpweft_format::partial_amax) and [`flat_amax`](warpweft_format::flat_amax)).
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), or null; nothing is written when it skips. All operands have
    /// one format.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format without scales, columns that do not divide into blocks, an
    /// address that is missing or misaligned.
    pub fn partial_amax(
        &self,
        format: Format,
        via: Via,
        operands: &[AmaxOperand],
        vote: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        let cut = Cut::of(format)?;
        let passes = cut.passes(operands);
        let tensor = |operand: &AmaxOperand| {
            for (what, address) in [
                ("rowwise block amaxes", operand.rowwise),
                ("columnwise block amaxes", operand.columnwise),
                ("a tensor's amax", operand.tensor_amax),
            ] {
                element_aligned(what, address, 4)?;
            }
            present("a tensor's amax", operand.tensor_amax)?;
            let stored = operand.stored();
            let (grid_rows, grid_cols) = cut.grid(stored);
            if format != Format::Mxfp8 && grid_rows * grid_cols > 0 {
                present("the block amaxes", operand.rowwise)?;
            }
            let descriptor = TensorArguments {
                fragment: operand.fragment.arguments(format)?,
                rowwise: operand.rowwise,
                columnwise: operand.columnwise,
                tensor_amax: operand.tensor_amax,
                grid_rows: narrow("blocks", grid_rows)?,
                grid_cols: narrow("blocks", grid_cols)?,
                columnwise_rows: narrow("blocks", stored.rows.div_ceil(32))?,
                columnwise_cols: narrow("blocks", stored.cols)?,
            };
            Ok((descriptor, cut.tiles(operand, passes)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, tensors.len() * PENDING)?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            only: only(&tensors),
            pending: table.workspace,
            vote,
            via_bf16: u32::from(via == Via::Bf16),
            passes: narrow("passes", passes as usize)?,
        };
        let function = self.function(Family::Amax, cut.kernel)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Amax, FLAT_PASS, MOST_PASSES);
