//! Looking for values from which no training goes on: `kernels/look.cu`.

use bytemuck::{Pod, Zeroable};

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::check::{element_aligned, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};

/// Values that are looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookOperand {
    /// f32 values.
    pub values: DeviceAddress,
    /// How many.
    pub elements: usize,
    /// The largest magnitude from which training goes on.
    pub largest: f32,
}

/// `LookTensor` of the kernel.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    values: DeviceAddress,
    count: u64,
    largest: f32,
    aligned: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 24);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    vote: DeviceAddress,
    diverged: DeviceAddress,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 64);

/// Groups of four elements that a thread has, the same as in the kernel.
const GROUPS: u32 = 4;
/// Elements of a tile.
const TILE: u64 = (GROUPS * 4 * THREADS) as u64;

impl Kernels {
    /// Sets the u32 at `diverged`, which may be the host's, to 1 if a value of `operands` is larger than its largest
    /// magnitude or no number; else it stays as it is, and also where the [`op::Vote`](crate::op::Vote) at `vote`
    /// skips.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn look(
        &self,
        operands: &[LookOperand],
        vote: DeviceAddress,
        diverged: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        for (what, address) in [("the vote", vote), ("the word of divergence", diverged)] {
            present(what, address)?;
            element_aligned(what, address, 4)?;
        }
        let tensor = |operand: &LookOperand| {
            present("values to look at", operand.values)?;
            element_aligned("values to look at", operand.values, 4)?;
            let tensor = TensorArguments {
                values: operand.values,
                count: operand.elements as u64,
                largest: operand.largest,
                aligned: u32::from(operand.values.number().is_multiple_of(16)),
            };
            Ok((tensor, (operand.elements as u64).div_ceil(TILE)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            vote,
            diverged,
            only: only(&tensors),
        };
        let function = self.function(Family::Look, c"look")?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Look, GROUPS);
