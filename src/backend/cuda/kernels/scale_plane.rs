//! Scale planes after a gather and before a GEMM: `kernels/scale_plane.cu`.

use bytemuck::{Pod, Zeroable};

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::check::{divides, element_aligned, narrow, present, scale_plane};
use super::launch::{KernelLaunch, THREADS};
use super::memory::ZeroOperand;
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::format::{Format, FormatError, Nvfp4Block, Orientation, PlaneSpec, Shape};

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

/// A scale plane that a GEMM is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwizzleOperand {
    /// The weight's shape.
    pub shape: Shape,
    /// The plane of [`Format::planes`].
    pub scale: DeviceAddress,
    /// As many bytes, written; not the same ones.
    pub swizzled: DeviceAddress,
}

/// `ExpandTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ExpandTensor {
    compact: DeviceAddress,
    plane: DeviceAddress,
    tile_rows: u32,
    plane_rows: u32,
    pitch: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<ExpandTensor>() == 32);

/// `SwizzleTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SwizzleTensor {
    scale: DeviceAddress,
    swizzled: DeviceAddress,
    rows: u32,
    cols: u32,
    pitch: u32,
    tiles_across: u32,
    transposed: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<SwizzleTensor>() == 40);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
}

/// 128×4 tiles of a swizzled plane that a block makes: `SIDE_BY_SIDE` of the kernels.
const SIDE_BY_SIDE: usize = 8;

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
        let tensor = |operand: &ExpandOperand| {
            divides(format, operand.shape)?;
            for (what, address) in [("compact scales", operand.compact), ("a scale plane", operand.plane)] {
                present(what, address)?;
                element_aligned(what, address, 4)?;
            }
            let planes = format.planes(orientation, operand.shape);
            let (plane_rows, pitch) = scale_plane(&planes).map_or((0, 0), |plane| (plane.rows, plane.cols));
            let descriptor = ExpandTensor {
                compact: operand.compact,
                plane: operand.plane,
                tile_rows: narrow("rows of tiles", operand.shape.rows / 16)?,
                plane_rows: narrow("scale rows", plane_rows)?,
                pitch: narrow("scale columns", pitch)?,
                reserved: 0,
            };
            Ok((descriptor, (pitch / 4) as u64))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors };
        let function = self.function(Family::ScalePlane, c"expand_scale")?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }

    /// Scale planes in the layout a block-scaled GEMM reads (see [`swizzle_scale`](crate::format::swizzle_scale)).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format without such a layout, a shape that does not divide into blocks, an
    /// address that is missing.
    pub fn swizzle_scale(
        &self,
        format: Format,
        orientation: Orientation,
        operands: &[SwizzleOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        let block = match format {
            Format::Nvfp4(_) => 16,
            Format::Mxfp8 => 32,
            _ => return Err(super::check::refused(FormatError::NoSwizzledLayout { format })),
        };
        // Columnwise MXFP8 planes hold the transposed matrix of scales.
        let transposed = format == Format::Mxfp8 && orientation == Orientation::Columnwise;
        let tensor = |operand: &SwizzleOperand| {
            divides(format, operand.shape)?;
            present("a scale plane", operand.scale)?;
            present("a swizzled plane", operand.swizzled)?;
            let Shape { rows, cols } = match orientation {
                Orientation::Rowwise => operand.shape,
                Orientation::Columnwise => operand.shape.transposed(),
            };
            let tiles_across = (cols / block).div_ceil(4);
            let planes = format.planes(orientation, operand.shape);
            let pitch = scale_plane(&planes).map_or(0, |plane| plane.cols);
            let descriptor = SwizzleTensor {
                scale: operand.scale,
                swizzled: operand.swizzled,
                rows: narrow("rows", rows)?,
                cols: narrow("columns", cols / block)?,
                pitch: narrow("scale columns", pitch)?,
                tiles_across: narrow("tiles", tiles_across)?,
                transposed: u32::from(transposed),
                aligned: u32::from(
                    operand.scale.number().is_multiple_of(4) && operand.swizzled.number().is_multiple_of(4),
                ),
            };
            let tiles = rows.div_ceil(128) as u64 * tiles_across.div_ceil(SIDE_BY_SIDE) as u64;
            Ok((descriptor, tiles))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors };
        let function = self.function(Family::ScalePlane, c"swizzle_scale")?;
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
