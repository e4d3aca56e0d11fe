//! Gathered scale planes made whole: `expand_scale` of `kernels/scale_plane.cu`.
//!
//! Laws:
//! - What comes after the last valid row is zero afterwards, whatever the format. Rows are spread only for
//!   NVFP4's 16×16 tiles, of which one row of sixteen travels; the compact plane of any other format is the
//!   beginning of the plain one.
//! - Compact rows may be in the first rows of the plane that they are spread over. A plane is cut into
//!   *strips* of columns, and the rows of a strip in which compact ones may be are left to one of its blocks,
//!   which begins when the others have read theirs.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::check::{divides, element_aligned, narrow, present, scale_plane};
use super::launch::{KernelLaunch, RESIDENT, THREADS};
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
    started: DeviceAddress,
    tile_rows: u32,
    plane_rows: u32,
    pitch: u32,
    blocks_down: u32,
    aligned: u32,
    strip_bits: u32,
}
const _: () = assert!(size_of::<ExpandTensor>() == 56);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ExpandArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: ExpandTensor,
}

/// Rows in which one tile's scales are repeated: `REPEAT` of the kernels.
const REPEAT: usize = 16;
/// Units that a block works on side by side, as powers of two: for a small launch, for one that fills the
/// device, and for a large one.
const NARROW: u32 = 2;
const WIDE: u32 = 4;
const WIDEST: u32 = 6;
/// Blocks of a launch with wide strips that fills a large device.
const FILLS: usize = 512;
/// Blocks of a launch that is large.
const LARGE: usize = RESIDENT as usize;
/// Rows of units that a block of a large launch takes, counted in rows of other launches: `BATCHES` of the
/// kernels.
const BATCHES: usize = 6;

/// Whether rows of the compact plane and of the whole one begin at multiples of 16 bytes.
fn in_groups(operand: &ExpandOperand, pitch: usize) -> bool {
    pitch.is_multiple_of(16)
        && [operand.compact, operand.plane].iter().all(|address| address.number().is_multiple_of(16))
}

/// How a plane is cut: into strips of columns, each spread by some blocks.
struct Strips {
    /// Logarithm of the units that a strip is wide.
    bits: u32,
    count: usize,
    /// Blocks of a strip that spread the lower rows.
    blocks_down: usize,
}

impl Strips {
    /// Strips of up to 2^`widest` units, whose blocks take `batches` rows of units each.
    fn of(operand: &ExpandOperand, widest: u32, batches: usize) -> Self {
        let planes = Format::NVFP4_2D.planes(Orientation::Rowwise, operand.shape);
        let (rows, pitch) = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
        let units = pitch / if in_groups(operand, pitch) { 16 } else { 4 };
        let bits = units.next_power_of_two().ilog2().clamp(NARROW, widest);
        // The first rows are left to one block, so there must be one.
        let upper = (operand.shape.rows / REPEAT).div_ceil(REPEAT);
        // A thread takes a unit of a compact row.
        let taken = batches * (THREADS as usize >> bits);
        let blocks_down = (rows / REPEAT).saturating_sub(upper).div_ceil(taken).max(1);
        Self { bits, count: if rows == 0 { 0 } else { units.div_ceil(1 << bits) }, blocks_down }
    }
}

/// How the planes of one launch are cut, and by which kernel they are spread.
struct Cut {
    kernel: &'static CStr,
    strips: Vec<Strips>,
    /// Blocks of a strip besides those that spread the lower rows.
    closing: usize,
}

impl Cut {
    fn of(operands: &[ExpandOperand]) -> Self {
        let cut = |widest, batches| -> Vec<Strips> {
            operands.iter().map(|operand| Strips::of(operand, widest, batches)).collect()
        };
        let wide = cut(WIDE, 1);
        match wide.iter().map(|strips| strips.count * strips.blocks_down).sum::<usize>() {
            ..FILLS => Self { kernel: c"expand_scale", strips: cut(NARROW, 1), closing: 0 },
            FILLS..LARGE => Self { kernel: c"expand_scale", strips: wide, closing: 0 },
            _ => Self { kernel: c"expand_scale_large", strips: cut(WIDEST, BATCHES), closing: 1 },
        }
    }

    fn blocks(&self, strips: &Strips) -> u64 {
        (strips.count * (strips.blocks_down + self.closing)) as u64
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
        let cut = Cut::of(operands);
        let tiles = cut.strips.iter().map(|strips| cut.blocks(strips));
        let word = size_of::<u32>();
        let counters: usize = cut.strips.iter().map(|strips| 2 * strips.count).sum();
        let mut only = ExpandTensor::zeroed();
        let table = TileTable::with_workspace(operands.len(), tiles, counters * word, |workspace| {
            let mut arrived = workspace;
            let descriptors = operands.iter().zip(&cut.strips).map(|(operand, strips)| {
                let own = arrived;
                arrived = arrived.plus(2 * strips.count * word);
                let planes = format.planes(orientation, operand.shape);
                let plane = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
                ExpandTensor {
                    compact: operand.compact,
                    plane: operand.plane,
                    arrived: own,
                    started: own.plus(strips.count * word),
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
        let function = self.function(Family::ScalePlane, cut.kernel)?;
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
mirrors!(Family::ScalePlane, REPEAT, BATCHES);

#[cfg(test)]
mod tests {
    use super::*;

    /// 36 units a row; of 304 rows of tiles, padding included, 19 are left to the end.
    #[test]
    fn strips_are_wider_in_larger_launches_and_have_a_closing_block_each_in_a_large_one() {
        let (shape, at) = (Shape::new(4800, 9216), DeviceAddress::new(4096));
        let operand = ExpandOperand { shape, compact: at, plane: at };
        for (planes, kernel, bits, count, blocks) in [
            (1, c"expand_scale", NARROW, 9, 9 * 5),
            (9, c"expand_scale", NARROW, 9, 9 * 5),
            (10, c"expand_scale", WIDE, 3, 3 * 18),
            (19, c"expand_scale", WIDE, 3, 3 * 18),
            (20, c"expand_scale_large", WIDEST, 1, 12 + 1),
        ] {
            let cut = Cut::of(&vec![operand; planes]);
            assert_eq!((cut.kernel, cut.strips.len()), (kernel, planes));
            for strips in &cut.strips {
                assert_eq!((strips.bits, strips.count), (bits, count), "{planes} planes");
                assert_eq!(cut.blocks(strips), blocks, "{planes} planes");
            }
        }
    }
}
