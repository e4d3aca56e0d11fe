//! Gathered scale planes made whole: `expand_scale` of `kernels/scale_plane.cu`.
//!
//! Laws:
//! - What comes after the last valid row is zero afterwards, whatever the format. Rows are spread only for
//!   NVFP4's 16×16 tiles, of which one row of sixteen travels; the compact plane of any other format is the
//!   beginning of the plain one.
//! - Compact rows may be in the first rows of the plane that they are spread over. The blocks that write over these,
//!   the *closing* ones, are the last of their plane, and begin to write when all blocks of the plane have read.

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
    /// The weight's shape; after a gather, that of all shards, padding included.
    pub shape: Shape,
    /// The compact rows, one after the other: at the beginning of the plane, or outside it. A multiple of 4.
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
    strips: u32,
    width: u32,
    rows: u32,
    closing_rows: u32,
    blocks: u32,
    lower_parts: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<ExpandTensor>() == 64);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ExpandArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: ExpandTensor,
    started: DeviceAddress,
}

/// Rows in which one tile's scales are repeated: `REPEAT` of the kernels.
const REPEAT: usize = 16;
/// Bytes of compact rows that a block holds at most: `HELD` of the kernels.
const HELD: usize = 16384;
/// Blocks among which a small launch is shared, and bytes of compact rows that one takes at least and at most.
const FEW: usize = 64;
const LITTLE: usize = 512;
const MUCH: usize = 4096;
/// Blocks of a larger launch: as many as a large device runs at once, with room for those that close.
const MANY: usize = 800;

/// Whether rows of the compact plane and of the whole one begin at multiples of 16 bytes.
fn in_groups(operand: &ExpandOperand, pitch: usize) -> bool {
    pitch.is_multiple_of(16)
        && [operand.compact, operand.plane].iter().all(|address| address.number().is_multiple_of(16))
}

/// How much of a launch each block takes: bytes of compact rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shares {
    block: usize,
    closing: usize,
}

impl Shares {
    /// Powers of two, because others were slower by up to a tenth. Those that close take less in a small launch,
    /// whose end is theirs (one H200, 2026-11-23).
    fn of(compact: usize) -> Self {
        let small = (compact / FEW).clamp(LITTLE, MUCH);
        let block = small.max(compact.div_ceil(MANY)).next_power_of_two().min(HELD);
        Self { block, closing: if compact > FEW * MUCH { block } else { block / 4 } }
    }
}

/// How a plane is cut: into strips of columns, and these into parts, one for each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Parts {
    strips: usize,
    /// Bytes that a strip is wide, the last one maybe less.
    width: usize,
    /// Compact rows of a part, and of a closing one.
    rows: usize,
    closing_rows: usize,
    /// Parts of a strip that are not closing.
    lower: usize,
    /// All parts of the plane.
    blocks: usize,
}

impl Parts {
    fn of(operand: &ExpandOperand, plane: (usize, usize), shares: Shares) -> Self {
        let (plane_rows, pitch) = plane;
        if plane_rows == 0 || pitch == 0 {
            return Self::default();
        }
        let width = pitch.div_ceil(pitch.div_ceil(HELD)).next_multiple_of(16);
        let strips = pitch.div_ceil(width);
        let rows = |share: usize| (share / width).max(1);
        let (rows, closing_rows) = (rows(shares.block), rows(shares.closing));
        // The rows that are spread over compact ones.
        let upper = (operand.shape.rows / REPEAT).div_ceil(REPEAT);
        let lower = (plane_rows / REPEAT - upper).div_ceil(rows);
        let blocks = strips * (lower + upper.div_ceil(closing_rows));
        Self { strips, width, rows, closing_rows, lower, blocks }
    }
}

/// Rows and bytes per row of the plane of an operand; none where it is empty.
fn extent(operand: &ExpandOperand) -> (usize, usize) {
    let planes = Format::NVFP4_2D.planes(Orientation::Rowwise, operand.shape);
    scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols))
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
        let extents: Vec<_> = operands.iter().map(extent).collect();
        let shares = Shares::of(extents.iter().map(|(rows, pitch)| rows / REPEAT * pitch).sum());
        let parts =
            operands.iter().zip(&extents).map(|(operand, extent)| Parts::of(operand, *extent, shares));
        let parts: Vec<_> = parts.collect();
        let word = size_of::<u32>();
        let (mut only, mut started) = (ExpandTensor::zeroed(), DeviceAddress::new(0));
        let tiles = parts.iter().map(|parts| parts.blocks as u64);
        let table =
            TileTable::with_workspace(operands.len(), tiles, (operands.len() + 1) * word, |workspace| {
                started = workspace;
                let numbered = operands.iter().zip(&extents).zip(&parts).enumerate();
                let descriptors =
                    numbered.map(|(at, ((operand, (plane_rows, pitch)), parts))| ExpandTensor {
                        compact: operand.compact,
                        plane: operand.plane,
                        arrived: workspace.plus((at + 1) * word),
                        tile_rows: (operand.shape.rows / REPEAT) as u32,
                        plane_rows: *plane_rows as u32,
                        pitch: *pitch as u32,
                        strips: parts.strips as u32,
                        width: parts.width as u32,
                        rows: parts.rows as u32,
                        closing_rows: parts.closing_rows as u32,
                        blocks: parts.blocks as u32,
                        lower_parts: parts.lower as u32,
                        aligned: u32::from(in_groups(operand, *pitch)),
                    });
                let descriptors: Vec<_> = descriptors.collect();
                only = descriptors.first().copied().unwrap_or(only);
                (descriptors, Vec::new())
            })?;
        let arguments = ExpandArguments { tiles: table.tiles, tensors: table.descriptors, only, started };
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

#[cfg(test)]
mirrors!(Family::ScalePlane, REPEAT, HELD);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_small_launch_has_few_blocks_and_a_large_one_as_many_as_a_device_runs() {
        for (compact, block, closing) in [
            (0, 512, 128),
            (16 << 10, 512, 128),
            (64 << 10, 1024, 256),
            (256 << 10, 4096, 1024),
            (3 << 20, 4096, 4096),
            (12 << 20, HELD, HELD),
            (1 << 30, HELD, HELD),
        ] {
            assert_eq!(Shares::of(compact), Shares { block, closing }, "{compact} bytes");
        }
    }

    proptest! {
        /// Every compact row has its block, no block holds more than it can, and those that close are the ones
        /// that write over compact rows.
        #[test]
        fn parts_cover_a_plane_once(tile_rows in 1usize..5000, columns in 1usize..40_000, compact in 0usize..20 << 20) {
            let at = DeviceAddress::new(4096);
            let shape = Shape::new(tile_rows * REPEAT, columns * 16);
            let operand = ExpandOperand { shape, compact: at, plane: at };
            let plane = (shape.rows.next_multiple_of(128), columns.next_multiple_of(4));
            let parts = Parts::of(&operand, plane, Shares::of(compact));
            prop_assert!(parts.width * parts.rows.max(parts.closing_rows) <= HELD.max(parts.width));
            prop_assert!(parts.width <= HELD && parts.width.is_multiple_of(16));
            prop_assert!((parts.strips - 1) * parts.width < plane.1 && plane.1 <= parts.strips * parts.width);
            let closing = parts.blocks / parts.strips - parts.lower;
            prop_assert_eq!(parts.blocks % parts.strips, 0);
            let upper = tile_rows.div_ceil(REPEAT);
            prop_assert!((closing - 1) * parts.closing_rows < upper && upper <= closing * parts.closing_rows);
            let below = plane.0 / REPEAT - upper;
            prop_assert!(below <= parts.lower * parts.rows && (parts.lower == 0 || (parts.lower - 1) * parts.rows < below));
            prop_assert!(upper * REPEAT >= tile_rows, "what is not closing is written below all compact rows");
        }
    }
}
