//! Partial cast: `kernels/cast.cu`.

use std::ffi::CStr;

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::fragment::{FragmentArguments, MasterFragment};
use super::launch::{KernelLaunch, THREADS, WARPS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, Fp8Element, Fp8Tile, Nvfp4Block, Shape, Via};

/// One master whose codes are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastOperand {
    /// The values.
    pub fragment: MasterFragment,
    /// Factors of the rowwise blocks, f32, [`Format::encode_blocks`] of the fragment's matrix; null for a format
    /// without.
    pub encode: DeviceAddress,
    /// Factors of the columnwise blocks (MXFP8), or null.
    pub columnwise_encode: DeviceAddress,
    /// The fragment's codes, written: the bytes [`FlatShard::fragment`](warpweft_format::FlatShard::fragment) of the
    /// data plane. Null if they are not wanted (MXFP8).
    pub data: DeviceAddress,
    /// The same of the columnwise plane (MXFP8), or null.
    pub columnwise_data: DeviceAddress,
}

/// `CastTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    fragment: FragmentArguments,
    encode: DeviceAddress,
    columnwise_encode: DeviceAddress,
    data: DeviceAddress,
    columnwise_data: DeviceAddress,
    grid_cols: u32,
    data_aligned: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 80);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    vote: DeviceAddress,
    via_bf16: u32,
    reserved: u32,
    only: TensorArguments,
}

/// `FLAT_TILE` of the kernels.
const FLAT_TILE: u64 = 8192;

/// The kernel of a format, and how it cuts its work.
struct Cut {
    kernel: &'static CStr,
    /// Columns of a block; 0 without blocks.
    width: usize,
    /// Rows of the strip a warp takes; 0 without blocks.
    strip: usize,
    /// Bytes that four codes take.
    store: u64,
    /// Bytes of one element of the data plane.
    element: u64,
}

impl Cut {
    const fn of(format: Format) -> Self {
        match format {
            Format::Nvfp4(Nvfp4Block::Tile16x16) => Self::blocks(c"cast_nvfp4_tile16", 16, 2),
            Format::Nvfp4(Nvfp4Block::Row1x16) => Self::blocks(c"cast_nvfp4_row16", 16, 2),
            Format::Fp8Block(block) => {
                let kernel = match (block.element, block.tile) {
                    (Fp8Element::E4m3, Fp8Tile::Tile128x128) => c"cast_e4m3_tile128",
                    (Fp8Element::E5m2, Fp8Tile::Tile128x128) => c"cast_e5m2_tile128",
                    (Fp8Element::E4m3, Fp8Tile::Row1x128) => c"cast_e4m3_row128",
                    (Fp8Element::E5m2, Fp8Tile::Row1x128) => c"cast_e5m2_row128",
                };
                Self::blocks(kernel, 128, 4)
            }
            Format::Mxfp8 => Self::blocks(c"cast_mxfp8", 32, 4),
            Format::Fp8Tensor(tensor) => match tensor.element {
                Fp8Element::E4m3 => Self::flat(c"cast_e4m3_tensor", 1),
                Fp8Element::E5m2 => Self::flat(c"cast_e5m2_tensor", 1),
            },
            Format::Bf16 => Self::flat(c"cast_bf16", 2),
            Format::F32 => Self::flat(c"cast_f32", 4),
        }
    }

    const fn blocks(kernel: &'static CStr, width: usize, store: u64) -> Self {
        Self { kernel, width, strip: 8, store, element: 1 }
    }

    const fn flat(kernel: &'static CStr, element: u64) -> Self {
        Self { kernel, width: 0, strip: 0, store: 4 * element, element }
    }

    fn tiles(&self, fragment: &MasterFragment) -> u64 {
        let Shape { rows, cols } = fragment.shape;
        match self.strip {
            _ if fragment.shard.len == 0 => 0,
            0 => (fragment.shard.len as u64).div_ceil(FLAT_TILE),
            strip => (rows.div_ceil(strip) as u64 * cols.div_ceil(128) as u64).div_ceil(WARPS),
        }
    }
}

impl Kernels {
    /// Codes of every fragment (see [`partial_cast`](warpweft_format::partial_cast) and
    /// [`flat_cast`](warpweft_format::flat_cast)). Nibbles of a neighbour keep their value.
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), or null; nothing is written when it skips. All operands have
    /// one format.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for columns that do not divide into blocks, an address that is missing or
    /// misaligned.
    pub fn partial_cast(
        &self,
        format: Format,
        via: Via,
        operands: &[CastOperand],
        vote: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        let cut = Cut::of(format);
        let tensor = |operand: &CastOperand| {
            let CastOperand { encode, columnwise_encode, data, columnwise_data, .. } = *operand;
            for (what, address) in
                [("encode factors", encode), ("columnwise encode factors", columnwise_encode)]
            {
                element_aligned(what, address, 4)?;
            }
            for (what, address) in [("a data plane", data), ("a columnwise data plane", columnwise_data)] {
                element_aligned(what, address, cut.element)?;
            }
            // A rank without rows need not have anything.
            if operand.fragment.shard.len > 0 {
                if format != Format::Mxfp8 {
                    present("a data plane", data)?;
                }
                if data != DeviceAddress::NULL && !matches!(format, Format::F32 | Format::Bf16) {
                    present("the encode factors", encode)?;
                }
                if columnwise_data != DeviceAddress::NULL {
                    present("the columnwise encode factors", columnwise_encode)?;
                }
            }
            let aligned = |address: DeviceAddress| address.number().is_multiple_of(cut.store);
            let descriptor = TensorArguments {
                fragment: operand.fragment.arguments(format)?,
                encode,
                columnwise_encode,
                data,
                columnwise_data,
                grid_cols: match cut.width {
                    0 => 0,
                    width => narrow("blocks", operand.fragment.shape.cols.div_ceil(width))?,
                },
                data_aligned: u32::from(aligned(data) && aligned(columnwise_data)),
            };
            Ok((descriptor, cut.tiles(&operand.fragment)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            only: only(&tensors),
            vote,
            via_bf16: u32::from(via == Via::Bf16 && format != Format::F32),
            reserved: 0,
        };
        let function = self.function(Family::Cast, cut.kernel)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Cast, FLAT_TILE);
