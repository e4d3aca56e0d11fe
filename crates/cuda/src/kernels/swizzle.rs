//! Scale planes for block-scaled products: `swizzle_scale` of `kernels/scale_plane.cu`.
//!
//! Law: a swizzled plane is in other memory than the one it is made from, and has the same number of bytes,
//! padding included. What a product reads of it does not depend on how the scales were stored: columnwise
//! MXFP8 planes hold the transposed matrix of scales and are transposed on the way.

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, present, refused, scale_plane};
use super::launch::{KernelLaunch, THREADS};
use super::module::{Function, Kernels};
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, FormatError, Orientation, Shape};

/// A scale plane that a GEMM is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwizzleOperand {
    /// The weight's shape.
    pub shape: Shape,
    /// The plane of [`Format::planes`]. A multiple of 4.
    pub scale: DeviceAddress,
    /// The same number of bytes, written; not the same memory. A multiple of 16.
    pub swizzled: DeviceAddress,
}

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
struct SwizzleArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: SwizzleTensor,
}

/// Swizzles scale planes of one shape again and again. It is made once and prepares launches by value, without
/// tables: it allocates nothing, so a closure may use it in every step.
#[derive(Clone, Debug)]
pub struct ScaleSwizzler {
    function: Function,
    tensor: SwizzleTensor,
    blocks: u32,
}

impl Kernels {
    /// Scale planes in the layout a block-scaled GEMM reads (see [`swizzle_scale`](warpweft_format::swizzle_scale)).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format without such a layout, columns that do not divide into blocks, an
    /// address that is missing or misaligned.
    pub fn swizzle_scale(
        &self,
        format: Format,
        orientation: Orientation,
        operands: &[SwizzleOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        let tensor = |operand: &SwizzleOperand| {
            let (tensor, blocks) = SwizzleTensor::of(format, orientation, operand.shape)?;
            Ok((tensor.at(operand.scale, operand.swizzled)?, blocks))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments =
            SwizzleArguments { tiles: table.tiles, tensors: table.descriptors, only: only(&tensors) };
        let function = self.function(Family::ScalePlane, c"swizzle_scale")?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }

    /// The same for one plane of a weight of `shape` at a time.
    ///
    /// # Errors
    /// As [`Kernels::swizzle_scale`].
    pub fn scale_swizzler(
        &self,
        format: Format,
        orientation: Orientation,
        shape: Shape,
    ) -> Result<ScaleSwizzler, CudaFailure> {
        let (tensor, blocks) = SwizzleTensor::of(format, orientation, shape)?;
        let blocks = narrow("blocks", usize::try_from(blocks).unwrap_or(usize::MAX))?;
        Ok(ScaleSwizzler { function: self.function(Family::ScalePlane, c"swizzle_scale")?, tensor, blocks })
    }
}

impl ScaleSwizzler {
    /// The plane at `scale` into other memory of the same number of bytes, as in [`SwizzleOperand`].
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn launch(&self, scale: DeviceAddress, swizzled: DeviceAddress) -> Result<KernelLaunch, CudaFailure> {
        let arguments = SwizzleArguments {
            tiles: TileArguments::of_one(self.blocks),
            tensors: DeviceAddress::NULL,
            only: self.tensor.at(scale, swizzled)?,
        };
        Ok(KernelLaunch::new(self.function.clone(), self.blocks, THREADS, arguments, None))
    }
}

impl SwizzleTensor {
    /// A plane without its addresses, and the blocks that swizzle it.
    fn of(format: Format, orientation: Orientation, shape: Shape) -> Result<(Self, u64), CudaFailure> {
        let block = match format {
            Format::Nvfp4(_) => 16,
            Format::Mxfp8 => 32,
            _ => return Err(refused(FormatError::NoSwizzledLayout { format })),
        };
        divides(format, shape)?;
        let shape = format.whole_blocks(shape);
        // Columnwise MXFP8 planes hold the transposed matrix of scales.
        let transposed = format == Format::Mxfp8 && orientation == Orientation::Columnwise;
        let Shape { rows, cols } = match orientation {
            Orientation::Rowwise => shape,
            Orientation::Columnwise => shape.transposed(),
        };
        let tiles_across = (cols / block).div_ceil(4);
        let planes = format.planes(orientation, shape);
        let pitch = scale_plane(&planes).map_or(0, |plane| plane.cols);
        let tensor = Self {
            scale: DeviceAddress::NULL,
            swizzled: DeviceAddress::NULL,
            rows: narrow("rows", rows)?,
            cols: narrow("columns", cols / block)?,
            pitch: narrow("scale columns", pitch)?,
            tiles_across: narrow("tiles", tiles_across)?,
            transposed: u32::from(transposed),
            aligned: 0,
        };
        // A thread makes 64 bytes: of one tile, or of four side by side, in which case four threads are
        // neighbours.
        let threads = match transposed {
            true => 8 * rows.div_ceil(128) as u64 * tiles_across as u64,
            false => 128 * rows.div_ceil(128) as u64 * tiles_across.div_ceil(16) as u64,
        };
        Ok((tensor, threads.div_ceil(u64::from(THREADS))))
    }

    /// The same plane at its place.
    fn at(self, scale: DeviceAddress, swizzled: DeviceAddress) -> Result<Self, CudaFailure> {
        for (what, address, bytes) in [("a scale plane", scale, 4), ("a swizzled plane", swizzled, 16)] {
            present(what, address)?;
            element_aligned(what, address, bytes)?;
        }
        let aligned = scale.number().is_multiple_of(16) && self.pitch.is_multiple_of(16);
        Ok(Self { scale, swizzled, aligned: u32::from(aligned), ..self })
    }
}
