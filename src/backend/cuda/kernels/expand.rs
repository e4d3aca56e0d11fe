//! Gathered scale planes made whole: `expand_scale` of `kernels/scale_plane.cu`.
//!
//! Laws:
//! - What stands behind the last valid row is zero afterwards, whatever the format. Rows are spread for NVFP4's 16×16 tiles alone, of which one row
//!   of sixteen travels; the compact plane of any other format is the beginning of the plain one.
//! - Compact rows may lie in the first rows of the plane that they are spread over. A plane is cut into *strips* of columns, and the rows of a
//!   strip in which compact ones may lie are left to the block of that strip which is done last.

use bytemuck::{Pod, Zeroable};

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::check::{divides, element_aligned, narrow, present, scale_plane};
use super::launch::{KernelLaunch, THREADS};
use super::memory::ZeroOperand;
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::format::{Format, Nvfp4Block, Orientation, PlaneSpec, Shape};

/// A gathered scale plane that is to be made whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpandOperand {
    /// The weight's shape; of all shards, padding included, behind a gather.
    pub shape: Shape,
    /// The compact rows, one after the other: at the beginning of the plane, or outside of it. A multiple
    /// of 4.
    pub compact: DeviceAddress,
    /// The plane of [`Format::planes`], written. A multiple of 4.
    pub plane: DeviceAddress,
}

/// `ExpandTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ExpandTensor {
    compact: DeviceAddress,
    plane: DeviceAddress,
    arrived: DeviceAddress,
    tile_rows: u32,
    plane_rows: u32,
    pitch: u32,
    blocks_down: u32,
    aligned: u32,
    strip_bits: u32,
}
const _: () = assert!(size_of::<ExpandTensor>() == 48);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ExpandArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: ExpandTensor,
}

/// Rows that one tile's scales stand in: `REPEAT` of the kernels.
const REPEAT: usize = 16;
/// Units that a block works on side by side, as powers of two: of a small launch, and of a large one.
const NARROW: u32 = 2;
const WIDE: u32 = 4;
/// Blocks of a launch that is large: with wide strips it still fills a large device.
const LARGE: usize = 512;

/// Do rows of the compact plane and of the whole one begin at multiples of 16 bytes?
fn in_groups(operand: &ExpandOperand, pitch: usize) -> bool {
    pitch.is_multiple_of(16)
        && [operand.compact, operand.plane].iter().all(|address| address.number().is_multiple_of(16))
}

/// How a plane is cut: into strips of columns, each spread by some blocks.
struct Strips {
    /// Logarithm of the units that a strip is wide.
    bits: u32,
    count: usize,
    blocks_down: usize,
}

impl Strips {
    /// Strips of up to 2^`widest` units.
    fn of(operand: &ExpandOperand, widest: u32) -> Self {
        let planes = Format::NVFP4_2D.planes(Orientation::Rowwise, operand.shape);
        let (rows, pitch) = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
        let units = pitch / if in_groups(operand, pitch) { 16 } else { 4 };
        let bits = units.next_power_of_two().ilog2().clamp(NARROW, widest);
        // The first rows are left to whoever is last, so somebody must be.
        let upper = (operand.shape.rows / REPEAT).div_ceil(REPEAT);
        // A thread takes a unit of a compact row.
        let batch = THREADS as usize >> bits;
        let blocks_down = (rows / REPEAT).saturating_sub(upper).div_ceil(batch).max(1);
        Self { bits, count: if rows == 0 { 0 } else { units.div_ceil(1 << bits) }, blocks_down }
    }

    fn blocks(&self) -> usize {
        self.count * self.blocks_down
    }

    /// Those of all planes of a launch.
    fn of_all(operands: &[ExpandOperand]) -> Vec<Self> {
        let cut = |widest| operands.iter().map(|operand| Self::of(operand, widest)).collect::<Vec<_>>();
        let wide = cut(WIDE);
        if wide.iter().map(Self::blocks).sum::<usize>() < LARGE { cut(NARROW) } else { wide }
    }
}

impl Kernels {
    /// Spreads compact scale rows over their planes and zeroes the padding (see
    /// [`expand_scale`](crate::format::expand_scale)). For a format whose compact plane is the plain one only the
    /// padding rows change, and `compact` must be the beginning of the plane.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an orientation that is not gathered, a shape that does not divide into
    /// blocks, an address that is missing or misaligned.
    pub fn expand_scale(
        &self,
        format: Format,
        orientation: Orientation,
        operands: &[ExpandOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        if !format.stored_orientations().contains(&orientation) {
            return Err(CudaFailure::Refused(format!("{format} gathers no {orientation} planes")));
        }
        if format != Format::Nvfp4(Nvfp4Block::Tile16x16) {
            let padding = operands.iter().map(|operand| padding(format, orientation, operand));
            return self.zero(&padding.collect::<Result<Vec<_>, _>>()?);
        }
        for operand in operands {
            divides(format, operand.shape)?;
            for (what, address) in [("compact scales", operand.compact), ("a scale plane", operand.plane)] {
                present(what, address)?;
                element_aligned(what, address, 4)?;
            }
            narrow("scale rows", operand.shape.rows.next_multiple_of(128))?;
            narrow("scale columns", operand.shape.cols)?;
        }
        let strips = Strips::of_all(operands);
        let tiles = strips.iter().map(|strips| strips.blocks() as u64);
        let counters: usize = strips.iter().map(|strips| strips.count).sum();
        let mut only = ExpandTensor::zeroed();
        let table =
            TileTable::with_workspace(operands.len(), tiles, counters * size_of::<u32>(), |workspace| {
                let mut arrived = workspace;
                let descriptors = operands.iter().zip(&strips).map(|(operand, strips)| {
                    let own = arrived;
                    arrived = arrived.plus(strips.count * size_of::<u32>());
                    let planes = format.planes(orientation, operand.shape);
                    let plane = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
                    ExpandTensor {
                        compact: operand.compact,
                        plane: operand.plane,
                        arrived: own,
                        tile_rows: (operand.shape.rows / REPEAT) as u32,
                        plane_rows: plane.0 as u32,
                        pitch: plane.1 as u32,
                        blocks_down: strips.blocks_down as u32,
                        aligned: u32::from(in_groups(operand, plane.1)),
                        strip_bits: strips.bits,
                    }
                });
                let descriptors: Vec<_> = descriptors.collect();
                only = descriptors.first().copied().unwrap_or(only);
                (descriptors, Vec::new())
            })?;
        let arguments = ExpandArguments { tiles: table.tiles, tensors: table.descriptors, only };
        let function = self.function(Family::ScalePlane, c"expand_scale")?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

/// The padding rows of a plane whose compact rows are its own.
fn padding(
    format: Format,
    orientation: Orientation,
    operand: &ExpandOperand,
) -> Result<ZeroOperand, CudaFailure> {
    divides(format, operand.shape)?;
    if operand.compact != operand.plane {
        return Err(CudaFailure::Refused(format!(
            "{format} has no compact rows; gather into the plane itself"
        )));
    }
    let bytes = |planes: Vec<PlaneSpec>| scale_plane(&planes).map_or(0, PlaneSpec::bytes);
    let valid = bytes(format.shard_planes(orientation, operand.shape));
    let padded = bytes(format.planes(orientation, operand.shape));
    Ok(ZeroOperand { to: operand.plane.plus(valid), bytes: padded - valid })
}
