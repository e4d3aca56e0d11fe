//! Planes into values: `kernels/dequantize.cu`.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, present, scale_pitch};
use super::launch::{KernelLaunch, THREADS, WARPS};
use super::module::Kernels;
use super::scale::ScaleRows;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{ElementType, Format, Fp8Element, Fp8Tile, Nvfp4Block, Orientation, Shape};

/// Planes whose values are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DequantizeOperand {
    /// The weight's shape, whatever the orientation.
    pub shape: Shape,
    /// The data plane.
    pub data: DeviceAddress,
    /// The scale plane; null for a format without one.
    pub scale: DeviceAddress,
    /// Its rows; only rowwise planes may have compact ones.
    pub scale_rows: ScaleRows,
    /// One f32, or null for 1.
    pub tensor_scale: DeviceAddress,
    /// The values, written: `[rows, cols]` of rowwise planes, `[cols, rows]` of columnwise ones.
    pub out: DeviceAddress,
}

/// `DequantizeTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    data: DeviceAddress,
    scale: DeviceAddress,
    tensor_scale: DeviceAddress,
    out: DeviceAddress,
    rows: u32,
    cols: u32,
    pitch: u32,
    aligned: u16,
    shared_rows: u16,
}
const _: () = assert!(size_of::<TensorArguments>() == 48);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: TensorArguments,
}

/// `FLAT_TILE` of the kernels.
const FLAT_TILE: u64 = 8192;

/// `FEW_ROWS` and `MANY_ROWS` of the kernels.
const FEW_ROWS: u64 = 2;
const MANY_ROWS: u64 = 4;

/// How a kernel cuts the stored matrix.
#[derive(Clone, Copy)]
enum Cut {
    /// A warp takes so many rows, with 512 bytes of values from each.
    Strips(u64),
    /// A block takes 128 rows of 128 columns.
    Columns,
    /// A block takes 8192 elements.
    Flat,
}

/// The kernels of a format, for f32 and bfloat16 values.
struct Kernel {
    names: (&'static CStr, &'static CStr),
    cut: Cut,
    /// Bytes of four neighbours in the data plane, and of the smallest unit in it.
    group: u64,
    element: u64,
}

impl Kernel {
    fn of(format: Format, orientation: Orientation) -> Self {
        use Fp8Element::{E4m3, E5m2};
        use Fp8Tile::{Row1x128, Tile128x128};
        let (names, cut, group, element) = match format {
            Format::F32 => ((c"dequantize_f32_f32", c"dequantize_f32_bf16"), Cut::Flat, 16, 4),
            Format::Bf16 => ((c"dequantize_bf16_f32", c"dequantize_bf16_bf16"), Cut::Flat, 8, 2),
            Format::Nvfp4(_) => {
                ((c"dequantize_nvfp4_f32", c"dequantize_nvfp4_bf16"), Cut::Strips(FEW_ROWS), 2, 1)
            }
            Format::Fp8Block(block) => {
                let names = match (block.element, block.tile) {
                    (E4m3, Tile128x128) => (c"dequantize_e4m3_tile128_f32", c"dequantize_e4m3_tile128_bf16"),
                    (E5m2, Tile128x128) => (c"dequantize_e5m2_tile128_f32", c"dequantize_e5m2_tile128_bf16"),
                    (E4m3, Row1x128) => (c"dequantize_e4m3_row128_f32", c"dequantize_e4m3_row128_bf16"),
                    (E5m2, Row1x128) => (c"dequantize_e5m2_row128_f32", c"dequantize_e5m2_row128_bf16"),
                };
                (names, Cut::Strips(MANY_ROWS), 4, 1)
            }
            Format::Fp8Tensor(tensor) => {
                let names = match tensor.element {
                    E4m3 => (c"dequantize_e4m3_tensor_f32", c"dequantize_e4m3_tensor_bf16"),
                    E5m2 => (c"dequantize_e5m2_tensor_f32", c"dequantize_e5m2_tensor_bf16"),
                };
                (names, Cut::Strips(MANY_ROWS), 4, 1)
            }
            Format::Mxfp8 => match orientation {
                Orientation::Rowwise => (
                    (c"dequantize_mxfp8_rowwise_f32", c"dequantize_mxfp8_rowwise_bf16"),
                    Cut::Strips(FEW_ROWS),
                    4,
                    1,
                ),
                Orientation::Columnwise => (
                    (c"dequantize_mxfp8_columnwise_f32", c"dequantize_mxfp8_columnwise_bf16"),
                    Cut::Columns,
                    16,
                    1,
                ),
            },
        };
        Self { names, cut, group, element }
    }

    fn tiles(&self, stored: Shape, values: ElementType) -> u64 {
        let cut = |height, width| stored.rows.div_ceil(height) as u64 * stored.cols.div_ceil(width) as u64;
        match self.cut {
            Cut::Strips(rows) => cut(rows as usize, 512 / values.bytes()).div_ceil(WARPS),
            Cut::Columns => cut(128, 128),
            Cut::Flat => (stored.elements() as u64).div_ceil(FLAT_TILE),
        }
    }
}

/// The number of rows, as a power of two, that share a scale row because equal rows are stored once.
const fn shared_rows(format: Format, scale_rows: ScaleRows) -> u16 {
    match (format, scale_rows) {
        (Format::Nvfp4(Nvfp4Block::Tile16x16), ScaleRows::Compact) => 4,
        _ => 0,
    }
}

impl Kernels {
    /// Values of planes (see [`dequantize`](warpweft_format::dequantize)), as f32, or rounded to bfloat16.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an element type other than these two, columns that do not divide into
    /// blocks, an address that is missing or misaligned.
    pub fn dequantize(
        &self,
        format: Format,
        orientation: Orientation,
        values: ElementType,
        operands: &[DequantizeOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        let kernel = Kernel::of(format, orientation);
        let name = match values {
            ElementType::F32 => kernel.names.0,
            ElementType::Bf16 => kernel.names.1,
            ElementType::U8 | ElementType::U32 => {
                return Err(CudaFailure::Refused(format!("values are f32 or bf16, not {values}")));
            }
        };
        let tensor = |operand: &DequantizeOperand| {
            let DequantizeOperand { shape, data, scale, scale_rows, tensor_scale, out } = *operand;
            divides(format, shape)?;
            if scale_rows == ScaleRows::Compact && orientation != Orientation::Rowwise {
                return Err(CudaFailure::Refused(format!("{orientation} scale rows are never compact")));
            }
            present("a data plane", data)?;
            present("the values", out)?;
            element_aligned("a data plane", data, kernel.element)?;
            element_aligned("a tensor's scale", tensor_scale, 4)?;
            element_aligned("values", out, values.bytes() as u64)?;
            let pitch = scale_pitch(format, orientation, shape);
            if pitch > 0 {
                present("a scale plane", scale)?;
            }
            if matches!(format, Format::Fp8Block(_)) {
                element_aligned("a scale plane", scale, 4)?;
            }
            // MXFP8 keeps its data untransposed; the dense formats are copied as they are.
            let stored = match (format, orientation) {
                (Format::Mxfp8, _) | (_, Orientation::Rowwise) => shape,
                (_, Orientation::Columnwise) => shape.transposed(),
            };
            // A thread makes 16 bytes of values.
            let columns = 16 / values.bytes();
            let codes = match kernel.cut {
                Cut::Strips(_) => kernel.group * columns as u64 / 4,
                Cut::Columns | Cut::Flat => kernel.group,
            };
            let in_rows = match kernel.cut {
                Cut::Strips(_) => stored.cols.is_multiple_of(columns),
                // Read along rows, and written along columns by four.
                Cut::Columns => stored.cols.is_multiple_of(columns) && stored.rows.is_multiple_of(4),
                Cut::Flat => true,
            };
            let aligned = in_rows && data.number().is_multiple_of(codes) && out.number().is_multiple_of(16);
            let descriptor = TensorArguments {
                data,
                scale,
                tensor_scale,
                out,
                rows: narrow("rows", stored.rows)?,
                cols: narrow("columns", stored.cols)?,
                pitch: narrow("scale columns", pitch)?,
                aligned: u16::from(aligned),
                shared_rows: shared_rows(format, scale_rows),
            };
            Ok((descriptor, kernel.tiles(stored, values)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors, only: only(&tensors) };
        let function = self.function(Family::Dequantize, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Dequantize, FLAT_TILE, FEW_ROWS, MANY_ROWS);
