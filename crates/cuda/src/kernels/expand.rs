//! Gathered scale planes made whole: `expand_scale` of `kernels/scale_plane.cu`.
//!
//! Laws:
//! - What comes after the last valid row is zero afterwards, whatever the format. Rows are spread only for
//!   NVFP4's 16×16 tiles, of which one row of sixteen travels; the compact plane of any other format is the
//!   beginning of the plain one.
//! - Compact rows may be in the first rows of the plane that they are spread over. A plane is cut into *strips* of
//!   columns. The blocks of a strip that write over compact rows, the *closing* ones, are its last, and begin to
//!   write when all its blocks have read. They wait for each other too, so they must run at once, and are few.

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, present, scale_plane};
use super::launch::{KernelLaunch, THREADS};
use super::memory::ZeroOperand;
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Nvfp4Block, Orientation, PlaneSpec, Shape};

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
    width: u32,
    rows: u32,
    closing_rows: u32,
    parts: u32,
    lower_parts: u32,
    aligned: u32,
    reserved: u32,
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
/// Bytes that a thread moves at once, where rows are aligned.
const GROUP: usize = 16;
/// Blocks that a small launch has.
const BLOCKS_OF_A_SMALL_LAUNCH: usize = 64;
/// Bytes of compact rows that one of them takes at least.
const LEAST_SHARE: usize = 512;
/// Bytes that one of them takes at most; where that does not do, the launch is large.
const MOST_SHARE: usize = 4096;
/// Blocks that a large launch has, unless they would hold too much: as many as a large device runs at once, with
/// room for those that close.
const BLOCKS_OF_A_LARGE_LAUNCH: usize = 800;
/// Closing blocks of a strip. Any device runs so many at once.
const MOST_CLOSING: usize = 16;

/// Whether rows of the compact plane and of the whole one begin at multiples of 16 bytes.
fn in_groups(operand: &ExpandOperand, pitch: usize) -> bool {
    pitch.is_multiple_of(GROUP)
        && [operand.compact, operand.plane]
            .iter()
            .all(|address| address.number().is_multiple_of(GROUP as u64))
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
        let small = (compact / BLOCKS_OF_A_SMALL_LAUNCH).clamp(LEAST_SHARE, MOST_SHARE);
        let large = compact.div_ceil(BLOCKS_OF_A_LARGE_LAUNCH);
        let block = small.max(large).next_power_of_two().min(HELD);
        let is_small = compact <= BLOCKS_OF_A_SMALL_LAUNCH * MOST_SHARE;
        Self { block, closing: if is_small { block / 4 } else { block } }
    }
}

/// How a plane is cut: into strips of columns, and these into parts, one for each block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cut {
    strips: usize,
    /// Bytes that a strip is wide, the last one maybe less.
    width: usize,
    /// Compact rows of a part, and of a closing one.
    rows: usize,
    closing_rows: usize,
    /// Parts of a strip that are not closing, and all.
    lower_parts: usize,
    parts: usize,
}

impl Cut {
    /// `None` for more rows than so few closing blocks can hold of any strip.
    fn of(operand: &ExpandOperand, plane: (usize, usize), shares: Shares) -> Option<Self> {
        let (plane_rows, pitch) = plane;
        if plane_rows == 0 || pitch == 0 {
            return Some(Self::default());
        }
        // The rows that are spread over compact ones.
        let upper = tile_rows(operand).div_ceil(REPEAT);
        let least = upper.div_ceil(MOST_CLOSING);
        let widest = HELD / least / GROUP * GROUP;
        if widest == 0 {
            return None;
        }
        let width = pitch.div_ceil(pitch.div_ceil(widest)).next_multiple_of(GROUP);
        let strips = pitch.div_ceil(width);
        let rows = |share: usize| (share / width).max(1);
        let (rows, closing_rows) = (rows(shares.block), rows(shares.closing).max(least));
        let lower_parts = (plane_rows / REPEAT - upper).div_ceil(rows);
        let parts = lower_parts + upper.div_ceil(closing_rows);
        Some(Self { strips, width, rows, closing_rows, lower_parts, parts })
    }
}

/// Compact rows of an operand.
fn tile_rows(operand: &ExpandOperand) -> usize {
    operand.shape.rows.div_ceil(REPEAT)
}

/// Rows and bytes per row of the plane of an operand; none where it is empty.
fn extent(operand: &ExpandOperand) -> (usize, usize) {
    let planes = Format::NVFP4_2D.planes(Orientation::Rowwise, operand.shape);
    scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols))
}

impl Kernels {
    /// Spreads compact scale rows over their planes and zeroes the padding (see
    /// [`expand_scale`](warpweft_format::expand_scale)). For a format whose compact plane is the plain one only the
    /// padding rows change, and `compact` must be the beginning of the plane.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an orientation that is not gathered, columns that do not divide into
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
        let cut = |(operand, extent): (&ExpandOperand, &(usize, usize))| {
            Cut::of(operand, *extent, shares).ok_or_else(|| {
                let rows = operand.shape.rows;
                CudaFailure::Refused(format!("a weight of {rows} rows has more scales than a launch spreads"))
            })
        };
        let cuts: Vec<Cut> = operands.iter().zip(&extents).map(cut).collect::<Result<_, _>>()?;
        let word = size_of::<u32>();
        let (mut only, mut started) = (ExpandTensor::zeroed(), DeviceAddress::new(0));
        let tiles = cuts.iter().map(|cut| (cut.strips * cut.parts) as u64);
        // A counter for the launch, and one for each strip.
        let counters = 1 + cuts.iter().map(|cut| cut.strips).sum::<usize>();
        let table = TileTable::with_workspace(operands.len(), tiles, counters * word, |workspace| {
            started = workspace;
            let mut arrived = workspace.plus(word);
            let planes = operands.iter().zip(&extents).zip(&cuts);
            let descriptors = planes.map(|((operand, (plane_rows, pitch)), cut)| {
                let own = arrived;
                arrived = arrived.plus(cut.strips * word);
                ExpandTensor {
                    compact: operand.compact,
                    plane: operand.plane,
                    arrived: own,
                    tile_rows: tile_rows(operand) as u32,
                    plane_rows: *plane_rows as u32,
                    pitch: *pitch as u32,
                    width: cut.width as u32,
                    rows: cut.rows as u32,
                    closing_rows: cut.closing_rows as u32,
                    parts: cut.parts as u32,
                    lower_parts: cut.lower_parts as u32,
                    aligned: u32::from(in_groups(operand, *pitch)),
                    reserved: 0,
                }
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
    fn a_small_launch_has_few_blocks_and_one_of_a_large_launch_takes_more() {
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

    fn operand(tile_rows: usize, columns: usize) -> (ExpandOperand, (usize, usize)) {
        let at = DeviceAddress::new(4096);
        let shape = Shape::new(tile_rows * REPEAT, columns * 16);
        let plane = (shape.rows.next_multiple_of(128), columns.next_multiple_of(4));
        (ExpandOperand { shape, compact: at, plane: at }, plane)
    }

    #[test]
    fn a_plane_whose_closing_blocks_would_be_too_many_is_refused() {
        let largest = REPEAT * MOST_CLOSING * HELD / GROUP;
        for (tile_rows, fits) in [(largest, true), (largest + 1, false)] {
            let (operand, plane) = operand(tile_rows, 1000);
            assert_eq!(Cut::of(&operand, plane, Shares::of(0)).is_some(), fits);
        }
    }

    proptest! {
        /// Every compact row of every column has its block, no block holds more than it can, few wait, and those that
        /// do not wait write below all compact rows.
        #[test]
        fn a_cut_covers_a_plane_once(
            tile_rows in prop_oneof![1usize..200, 200usize..40_000],
            columns in prop_oneof![1usize..300, 300usize..40_000],
            compact in 0usize..20 << 20,
        ) {
            let (operand, plane) = operand(tile_rows, columns);
            let cut = Cut::of(&operand, plane, Shares::of(compact)).unwrap();
            prop_assert!(cut.width * cut.rows.max(cut.closing_rows) <= HELD && cut.width.is_multiple_of(GROUP));
            prop_assert!((cut.strips - 1) * cut.width < plane.1 && plane.1 <= cut.strips * cut.width);
            let closing = cut.parts - cut.lower_parts;
            prop_assert!((1..=MOST_CLOSING).contains(&closing));
            // As the kernel numbers them: parts that do not close, from the first row that they may take on.
            let first = tile_rows.div_ceil(REPEAT);
            prop_assert!((closing - 1) * cut.closing_rows < first && first <= closing * cut.closing_rows);
            let lower = plane.0 / REPEAT - first;
            prop_assert_eq!(cut.lower_parts, lower.div_ceil(cut.rows));
            for part in 0..cut.lower_parts {
                let written = (first + part * cut.rows) * REPEAT;
                prop_assert!(written >= tile_rows, "part {} writes row {} of {}", part, written, tile_rows);
            }
        }
    }
}
