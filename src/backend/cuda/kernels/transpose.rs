//! Columnwise planes from rowwise ones: `kernels/transpose.cu`.

use bytemuck::{Pod, Zeroable};

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::check::{divides, element_aligned, narrow, present, refused, scale_pitch, scale_plane};
use super::launch::KernelLaunch;
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::format::{Format, Orientation, Shape};

/// A weight whose columnwise planes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransposeOperand {
    /// The weight's shape.
    pub shape: Shape,
    /// The rowwise data plane.
    pub data: DeviceAddress,
    /// The rowwise scale plane, with its padding rows or without; null for a format without one.
    pub scale: DeviceAddress,
    /// The columnwise data plane, written.
    pub columnwise_data: DeviceAddress,
    /// The columnwise scale plane of [`Format::planes`], written, padding too; null for a format without.
    pub columnwise_scale: DeviceAddress,
}

/// `TransposeTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    data: DeviceAddress,
    scale: DeviceAddress,
    out_data: DeviceAddress,
    out_scale: DeviceAddress,
    rows: u32,
    cols: u32,
    data_tiles: u32,
    way: u32,
    pitch: u32,
    out_pitch: u32,
    out_rows: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 64);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
}

/// Threads and warps of a block: `BLOCK` of the kernels.
const BLOCK: u32 = 128;
const BLOCK_WARPS: usize = BLOCK as usize / 32;

/// How data may be moved: the constants of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Rows begin anywhere.
    Bytes = 0,
    /// Rows of both matrices begin at multiples of 4 bytes.
    Words = 1,
    /// At multiples of 16 bytes, and they are whole squares.
    Squares = 2,
}

impl Way {
    /// Thread blocks that the data of a matrix takes.
    fn tiles(self, shape: Shape, bits: usize) -> u64 {
        let tiles = |rows, cols| shape.rows.div_ceil(rows) as u64 * shape.cols.div_ceil(cols) as u64;
        match self {
            // 32 words of four bytes by as many elements as they hold.
            Self::Bytes | Self::Words => tiles(32 * 32 / bits, 32 * 32 / bits),
            // The warps of a block one below the other, 64 registers per thread: see `Share` of the kernels.
            Self::Squares => {
                let (rows, cols) = square(bits);
                let words = cols * bits / 32;
                let squares = 64 / (rows * words);
                tiles(BLOCK_WARPS * 4 * rows * squares, 8 * cols)
            }
        }
    }
}

/// Rows and columns of the square that a thread turns around.
const fn square(bits: usize) -> (usize, usize) {
    (128 / bits, if bits == 4 { 16 } else { 128 / bits })
}

impl TransposeOperand {
    fn way(&self, bits: usize) -> Way {
        let (rows, cols) = square(bits);
        let data = [self.data, self.columnwise_data];
        let all_at = |bytes| data.iter().all(|address| address.number().is_multiple_of(bytes));
        let scale_at = self.columnwise_scale.number().is_multiple_of(4);
        let is_square = self.shape.rows.is_multiple_of(rows) && self.shape.cols.is_multiple_of(cols);
        let in_words = |elements: usize| (elements * bits).is_multiple_of(32);
        if is_square && all_at(16) && scale_at {
            Way::Squares
        } else if in_words(self.shape.rows) && in_words(self.shape.cols) && all_at(4) && scale_at {
            Way::Words
        } else {
            Way::Bytes
        }
    }

    fn arguments(&self, format: Format, bits: usize) -> Result<(TensorArguments, u64), CudaFailure> {
        let Self { shape, data, scale, columnwise_data, columnwise_scale } = *self;
        divides(format, shape)?;
        let planes = format.planes(Orientation::Columnwise, shape);
        let plane = scale_plane(&planes);
        let (out_rows, out_pitch) = plane.map_or((0, 0), |plane| (plane.rows, plane.cols));
        for (what, address) in [("the rowwise data", data), ("the columnwise data", columnwise_data)] {
            present(what, address)?;
            element_aligned(what, address, (bits as u64 / 8).max(1))?;
        }
        for (what, address) in [("the rowwise scales", scale), ("the columnwise scales", columnwise_scale)] {
            if let Some(plane) = plane {
                present(what, address)?;
                element_aligned(what, address, plane.element.bytes() as u64)?;
            }
        }
        let way = self.way(bits);
        let data_tiles = way.tiles(shape, bits);
        // A thread makes 16 rows of four scale bytes, or one f32.
        let scale_items = match format {
            Format::Nvfp4(_) => (out_rows / 16) as u64 * (out_pitch / 4) as u64,
            _ => out_rows as u64 * out_pitch as u64,
        };
        let descriptor = TensorArguments {
            data,
            scale,
            out_data: columnwise_data,
            out_scale: columnwise_scale,
            rows: narrow("rows", shape.rows)?,
            cols: narrow("columns", shape.cols)?,
            data_tiles: u32::try_from(data_tiles)
                .map_err(|_| CudaFailure::Refused(format!("{shape} is too large to transpose")))?,
            way: way as u32,
            pitch: narrow("scale columns", scale_pitch(format, Orientation::Rowwise, shape))?,
            out_pitch: narrow("scale columns", out_pitch)?,
            out_rows: narrow("scale rows", out_rows)?,
            reserved: 0,
        };
        Ok((descriptor, data_tiles + scale_items.div_ceil(u64::from(BLOCK))))
    }
}

impl Kernels {
    /// Columnwise planes of whole weights (see [`transpose`](crate::format::transpose())).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format whose columnwise planes do not follow from its rowwise ones, a shape
    /// that does not divide into blocks, an address that is missing or misaligned.
    pub fn transpose(
        &self,
        format: Format,
        operands: &[TransposeOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        format.derives_columnwise().map_err(refused)?;
        let (name, bits) = match format {
            Format::Nvfp4(_) => (c"transpose_nvfp4", 4),
            Format::Fp8Block(_) | Format::Fp8Tensor(_) | Format::Mxfp8 => (c"transpose_fp8", 8),
            Format::Bf16 => (c"transpose_bf16", 16),
            Format::F32 => (c"transpose_f32", 32),
        };
        let tensors: Vec<_> =
            operands.iter().map(|operand| operand.arguments(format, bits)).collect::<Result<_, _>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors };
        let function = self.function(Family::Transpose, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), BLOCK, arguments, Some(table.table)))
    }
}
