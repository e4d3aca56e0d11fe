//! Columnwise planes from rowwise ones: `kernels/transpose.cu`.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, present, refused, scale_pitch, scale_plane};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Orientation, Shape};

/// A weight whose columnwise planes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransposeOperand {
    /// The weight's shape.
    pub shape: Shape,
    /// The rowwise data plane.
    pub data: DeviceAddress,
    /// The rowwise scale plane, with or without its padding rows; null for a format without one.
    pub scale: DeviceAddress,
    /// The columnwise data plane, written.
    pub columnwise_data: DeviceAddress,
    /// The columnwise scale plane of [`Format::planes`], written, including padding; null for a format
    /// without.
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
    scale_tiles: u32,
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
    only: TensorArguments,
}

/// The kernel for elements of one width.
struct Kernel {
    name: &'static CStr,
    bits: usize,
    /// Rows and columns of a tile.
    side: usize,
    threads: u32,
}

impl Kernel {
    const fn of(format: Format) -> Self {
        match format {
            Format::Nvfp4(_) => Self { name: c"transpose_nvfp4", bits: 4, side: 256, threads: THREADS },
            Format::Fp8Block(_) | Format::Fp8Tensor(_) | Format::Mxfp8 => {
                Self { name: c"transpose_fp8", bits: 8, side: 128, threads: THREADS }
            }
            Format::Bf16 => Self { name: c"transpose_bf16", bits: 16, side: 128, threads: 2 * THREADS },
            Format::F32 => Self { name: c"transpose_f32", bits: 32, side: 64, threads: THREADS },
        }
    }
}

/// How the rows of both matrices are aligned: the constants of `kernels/crossing.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Bytes = 0,
    Words = 1,
    Groups = 2,
}

impl TransposeOperand {
    /// The way for planes of `shape`.
    fn way(&self, shape: Shape, bits: usize) -> Way {
        let data = [self.data, self.columnwise_data];
        let scales = [self.scale, self.columnwise_scale];
        let at =
            |list: &[DeviceAddress], bytes| list.iter().all(|address| address.number().is_multiple_of(bytes));
        let rows_of = |bytes: usize| {
            [shape.rows, shape.cols].iter().all(|elements| (elements * bits).is_multiple_of(8 * bytes))
        };
        match at(&scales, 4) {
            true if rows_of(16) && at(&data, 16) => Way::Groups,
            true if rows_of(4) && at(&data, 4) => Way::Words,
            _ => Way::Bytes,
        }
    }

    fn arguments(&self, format: Format, kernel: &Kernel) -> Result<(TensorArguments, u64), CudaFailure> {
        let Self { data, scale, columnwise_data, columnwise_scale, .. } = *self;
        divides(format, self.shape)?;
        let shape = format.whole_blocks(self.shape);
        let planes = format.planes(Orientation::Columnwise, shape);
        let plane = scale_plane(&planes);
        let (out_rows, out_pitch) = plane.map_or((0, 0), |plane| (plane.rows, plane.cols));
        for (what, address) in [("the rowwise data", data), ("the columnwise data", columnwise_data)] {
            present(what, address)?;
            element_aligned(what, address, (kernel.bits as u64 / 8).max(1))?;
        }
        for (what, address) in [("the rowwise scales", scale), ("the columnwise scales", columnwise_scale)] {
            if let Some(plane) = plane {
                present(what, address)?;
                element_aligned(what, address, plane.element.bytes() as u64)?;
            }
        }
        let tiles = |elements: usize| elements.div_ceil(kernel.side) as u64;
        let data_tiles = tiles(shape.rows) * tiles(shape.cols);
        let scale_tiles = match format {
            // A block makes 16 rows of each of 16 columns of tiles, 128 scales long.
            Format::Nvfp4(_) => (out_rows / 16).div_ceil(16) as u64 * out_pitch.div_ceil(128) as u64,
            // A thread makes one f32.
            _ => (out_rows as u64 * out_pitch as u64).div_ceil(u64::from(THREADS)),
        };
        let descriptor = TensorArguments {
            data,
            scale,
            out_data: columnwise_data,
            out_scale: columnwise_scale,
            rows: narrow("rows", shape.rows)?,
            cols: narrow("columns", shape.cols)?,
            scale_tiles: u32::try_from(scale_tiles)
                .map_err(|_| CudaFailure::Refused(format!("{shape} is too large to transpose")))?,
            way: self.way(shape, kernel.bits) as u32,
            pitch: narrow("scale columns", scale_pitch(format, Orientation::Rowwise, shape))?,
            out_pitch: narrow("scale columns", out_pitch)?,
            out_rows: narrow("scale rows", out_rows)?,
            reserved: 0,
        };
        Ok((descriptor, data_tiles + scale_tiles))
    }
}

impl Kernels {
    /// Columnwise planes of whole weights (see [`transpose`](warpweft_format::transpose())).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a format whose columnwise planes do not follow from its rowwise ones, columns
    /// that do not divide into blocks, an address that is missing or misaligned.
    pub fn transpose(
        &self,
        format: Format,
        operands: &[TransposeOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        format.derives_columnwise().map_err(refused)?;
        let kernel = Kernel::of(format);
        let tensors: Vec<_> =
            operands.iter().map(|operand| operand.arguments(format, &kernel)).collect::<Result<_, _>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors, only: only(&tensors) };
        let function = self.function(Family::Transpose, kernel.name)?;
        Ok(KernelLaunch::new(function, table.blocks(), kernel.threads, arguments, Some(table.table)))
    }
}
