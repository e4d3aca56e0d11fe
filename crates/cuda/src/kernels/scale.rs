//! Fused scale: `kernels/scale.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, present, scale_plane};
use super::launch::{KernelLaunch, RESIDENT, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Fp8Element, Fp8Tile, Nvfp4Block, Orientation, ScaleRule, Shape};

/// Which rows a scale plane has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleRows {
    /// [`Format::compact_planes`]: one of each group of rows that repeat.
    Compact,
    /// [`Format::shard_planes`]: no padding rows.
    Shard,
    /// [`Format::planes`]: padded as a GEMM wants them.
    Padded,
}

/// One orientation of one weight whose scales are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleOperand {
    /// Which stored orientation.
    pub orientation: Orientation,
    /// The weight's shape, or that of the rank's real rows.
    pub shape: Shape,
    /// f32, [`Format::amax_blocks`].
    pub block_amax: DeviceAddress,
    /// f32: the amaxes over all ranks of the weights that share its scale, itself among them.
    pub tensor_amax: DeviceAddress,
    /// How many these are, at least 1.
    pub scaled_with: usize,
    /// f32, [`Format::encode_blocks`], written.
    pub encode: DeviceAddress,
    /// The scale plane, written; null for a format without one.
    pub scale_plane: DeviceAddress,
    /// Its rows.
    pub scale_rows: ScaleRows,
    /// One f32: what dequantizing needs besides the planes, written.
    pub tensor_scale: DeviceAddress,
}

/// `ScaleTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    block_amax: DeviceAddress,
    tensor_amax: DeviceAddress,
    encode: DeviceAddress,
    plane: DeviceAddress,
    tensor_scale: DeviceAddress,
    grid_rows: u32,
    grid_cols: u32,
    plane_rows: u32,
    pitch: u32,
    repeat: u16,
    scaled_with: u16,
    plane_aligned: u16,
    blocks_aligned: u16,
}
const _: () = assert!(size_of::<TensorArguments>() == 64);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    vote: DeviceAddress,
    diverged: DeviceAddress,
    largest: f32,
    epsilon: f32,
    power_of_two: u32,
    reserved: u32,
    only: TensorArguments,
}

/// Rows of four scales that a thread makes: `FEW` and, in large launches, `MANY` of the kernels.
const FEW: u32 = 2;
const MANY: u32 = 4;
/// Blocks of `FEW` rows above which a launch of MXFP8 is large: several times what a device runs at one time.
/// A launch of NVFP4, whose blocks divide first, is large where there are more than that ([`RESIDENT`]).
const LARGE_MXFP8: u64 = 4096;

/// Rows and columns of the block grid of an orientation.
fn grid(format: Format, orientation: Orientation, shape: Shape) -> (usize, usize) {
    let Shape { rows, cols } = shape;
    match format {
        Format::F32 | Format::Bf16 | Format::Fp8Tensor(_) => (0, 0),
        Format::Nvfp4(Nvfp4Block::Tile16x16) => (rows.div_ceil(16), cols.div_ceil(16)),
        Format::Nvfp4(Nvfp4Block::Row1x16) => (rows, cols.div_ceil(16)),
        Format::Fp8Block(block) => match block.tile {
            Fp8Tile::Tile128x128 => (rows.div_ceil(128), cols.div_ceil(128)),
            Fp8Tile::Row1x128 => (rows, cols.div_ceil(128)),
        },
        Format::Mxfp8 => match orientation {
            Orientation::Rowwise => (rows, cols.div_ceil(32)),
            Orientation::Columnwise => (rows.div_ceil(32), cols),
        },
    }
}

impl ScaleOperand {
    fn arguments(&self, format: Format, quads: u32) -> Result<(TensorArguments, u64), CudaFailure> {
        let has_plane = !matches!(format, Format::Fp8Tensor(_));
        for (what, address) in [
            ("block amaxes", self.block_amax),
            ("a tensor's amax", self.tensor_amax),
            ("encode factors", self.encode),
            ("a tensor's scale", self.tensor_scale),
        ] {
            element_aligned(what, address, 4)?;
            if has_plane || what != "block amaxes" {
                present(what, address)?;
            }
        }
        if !format.stored_orientations().contains(&self.orientation) {
            let orientation = self.orientation;
            return Err(CudaFailure::Refused(format!("{format} stores no {orientation} planes to scale")));
        }
        divides(format, self.shape)?;
        let planes = match self.scale_rows {
            ScaleRows::Compact => format.compact_planes(self.orientation, self.shape),
            ScaleRows::Shard => format.shard_planes(self.orientation, self.shape),
            ScaleRows::Padded => format.planes(self.orientation, self.shape),
        };
        let (plane_rows, pitch) = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
        if matches!(format, Format::Fp8Block(_)) {
            element_aligned("a scale plane", self.scale_plane, 4)?;
        }
        let repeat = match (format, self.scale_rows) {
            (Format::Nvfp4(Nvfp4Block::Tile16x16), ScaleRows::Shard | ScaleRows::Padded) => 16,
            _ => 1,
        };
        let scaled_with = u16::try_from(self.scaled_with).ok().filter(|weights| *weights > 0);
        let scaled_with = scaled_with.ok_or_else(|| {
            CudaFailure::Refused(format!(
                "{} weights share a scale; put 1 to {} into one scale group",
                self.scaled_with,
                u16::MAX
            ))
        })?;
        let (grid_rows, grid_cols) = grid(format, self.orientation, self.shape);
        let threads = plane_rows.div_ceil(repeat.into()).div_ceil(quads as usize) as u64 * (pitch / 4) as u64;
        // The tensor's scale is written even if there is no block.
        let tiles = threads.div_ceil(u64::from(THREADS)).max(1);
        let blocks_aligned = grid_cols.is_multiple_of(4)
            && [self.block_amax, self.encode].iter().all(|address| address.number().is_multiple_of(16));
        let descriptor = TensorArguments {
            block_amax: self.block_amax,
            tensor_amax: self.tensor_amax,
            encode: self.encode,
            plane: self.scale_plane,
            tensor_scale: self.tensor_scale,
            grid_rows: narrow("blocks", grid_rows)?,
            grid_cols: narrow("blocks", grid_cols)?,
            plane_rows: narrow("scale rows", plane_rows)?,
            pitch: narrow("scale columns", pitch)?,
            repeat,
            scaled_with,
            plane_aligned: u16::from(self.scale_plane.number().is_multiple_of(4)),
            blocks_aligned: u16::from(blocks_aligned),
        };
        Ok((descriptor, tiles))
    }
}

impl Kernels {
    /// Scale planes, encode factors and tensor scales (see [`fused_scale`](warpweft_format::fused_scale)).
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), or null; nothing is written when it skips. `diverged` is one
    /// u32, or null: it becomes 1 where the amax of an operand has no scale (NVFP4, not finite), and else stays as it
    /// is; what belongs to that operand is not written.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format without scales, columns that do not divide into blocks, an
    /// address that is missing or misaligned.
    pub fn fused_scale(
        &self,
        format: Format,
        operands: &[ScaleOperand],
        vote: DeviceAddress,
        diverged: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        let (kernel, largest, epsilon, rule) = match format {
            Format::Nvfp4(_) => (c"scale_nvfp4", Fp8Element::E4m3, 0.0, ScaleRule::Float32),
            Format::Mxfp8 => (c"scale_mxfp8", Fp8Element::E4m3, 0.0, ScaleRule::PowerOfTwo),
            Format::Fp8Block(block) => {
                let kernel = match block.tile {
                    Fp8Tile::Tile128x128 => c"scale_fp8_tile128",
                    Fp8Tile::Row1x128 => c"scale_fp8_row128",
                };
                (kernel, block.element, block.epsilon.value(), block.scale)
            }
            Format::Fp8Tensor(tensor) => {
                (c"scale_fp8_tensor", tensor.element, tensor.epsilon.value(), tensor.scale)
            }
            Format::F32 | Format::Bf16 => {
                return Err(refused_without_scales(format));
            }
        };
        let cut = |quads| -> Result<Vec<_>, CudaFailure> {
            operands.iter().map(|operand| operand.arguments(format, quads)).collect()
        };
        let few = cut(FEW)?;
        let tiles = few.iter().map(|(_, tiles)| *tiles).sum::<u64>();
        let (kernel, tensors) = match format {
            Format::Mxfp8 if tiles > LARGE_MXFP8 => (c"scale_mxfp8_large", cut(MANY)?),
            Format::Nvfp4(_) if tiles > RESIDENT => (c"scale_nvfp4_large", cut(MANY)?),
            _ => (kernel, few),
        };
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            only: only(&tensors),
            vote,
            diverged,
            largest: largest.largest(),
            epsilon,
            power_of_two: u32::from(rule == ScaleRule::PowerOfTwo),
            reserved: 0,
        };
        // Without blocks a thread makes one tensor's scale.
        let blocks = match format {
            Format::Fp8Tensor(_) => narrow("weights", operands.len())?.div_ceil(THREADS),
            _ => table.blocks(),
        };
        let function = self.function(Family::Scale, kernel)?;
        Ok(KernelLaunch::new(function, blocks, THREADS, arguments, Some(table.table)))
    }
}

fn refused_without_scales(format: Format) -> CudaFailure {
    CudaFailure::Refused(format!("{format} has no scales"))
}

#[cfg(test)]
mirrors!(Family::Scale, FEW, MANY);
