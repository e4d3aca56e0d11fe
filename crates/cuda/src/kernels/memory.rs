//! Copies and zeroes: `kernels/memory.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::present;
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyOperand {
    /// Source.
    pub from: DeviceAddress,
    /// Target; does not overlap the source, nor another operand's target or source.
    pub to: DeviceAddress,
    /// Number of bytes.
    pub bytes: usize,
}

/// Bytes to set to zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroOperand {
    /// The first.
    pub to: DeviceAddress,
    /// Number of bytes.
    pub bytes: usize,
}

/// `Range` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RangeArguments {
    from: DeviceAddress,
    to: DeviceAddress,
    bytes: u64,
    aligned: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<RangeArguments>() == 32);

impl RangeArguments {
    pub(super) fn new(from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Self {
        let aligned = from.number().is_multiple_of(16) && to.number().is_multiple_of(16);
        Self { from, to, bytes: bytes as u64, aligned: u32::from(aligned), reserved: 0 }
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: RangeArguments,
}

/// `TILE` of the kernels.
const TILE: u64 = 16384;

impl Kernels {
    /// Copies ranges of bytes by multiprocessors, for what is put in place on the compute stream. Any
    /// alignment.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing.
    pub fn copy(&self, operands: &[CopyOperand]) -> Result<KernelLaunch, CudaFailure> {
        for operand in operands {
            present("a source", operand.from)?;
        }
        let ranges = operands.iter().map(|operand| (operand.from, operand.to, operand.bytes));
        self.ranges(c"copy_ranges", ranges)
    }

    /// Zeroes ranges of bytes. Any alignment.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing.
    pub fn zero(&self, operands: &[ZeroOperand]) -> Result<KernelLaunch, CudaFailure> {
        let ranges = operands.iter().map(|operand| (DeviceAddress::NULL, operand.to, operand.bytes));
        self.ranges(c"zero_ranges", ranges)
    }

    fn ranges(
        &self,
        name: &std::ffi::CStr,
        ranges: impl Iterator<Item = (DeviceAddress, DeviceAddress, usize)>,
    ) -> Result<KernelLaunch, CudaFailure> {
        let range = |(from, to, bytes): (DeviceAddress, DeviceAddress, usize)| {
            present("a target", to)?;
            Ok((RangeArguments::new(from, to, bytes), (bytes as u64).div_ceil(TILE)))
        };
        let tensors: Vec<_> = ranges.map(range).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments { tiles: table.tiles, tensors: table.descriptors, only: only(&tensors) };
        let function = self.function(Family::Memory, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Memory, TILE);
