//! Norm record and vote: `kernels/norm.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// Main grads that count towards the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormOperand {
    /// f32 values.
    pub values: DeviceAddress,
    /// How many.
    pub elements: usize,
}

/// What a vote reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VoteOperand {
    /// [`op::NormRecord`](warpweft_plan::op::NormRecord)s, in rank order.
    pub records: DeviceAddress,
    /// Number of ranks.
    pub ranks: usize,
    /// Optimizer steps taken, one u32, updated.
    pub optimizer_step: DeviceAddress,
    /// One f32.
    pub gradient_scale: DeviceAddress,
    /// The [`op::Vote`](warpweft_plan::op::Vote), written.
    pub vote: DeviceAddress,
    /// Gradients are scaled down to this norm; 0 turns clipping off.
    pub max_norm: f32,
}

/// `NormTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct TensorArguments {
    values: DeviceAddress,
    count: u64,
    aligned: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 24);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    partial: DeviceAddress,
    started: DeviceAddress,
    fault: DeviceAddress,
    record: DeviceAddress,
    only: TensorArguments,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct VoteArguments {
    records: DeviceAddress,
    optimizer_step: DeviceAddress,
    gradient_scale: DeviceAddress,
    vote: DeviceAddress,
    ranks: u32,
    max_norm: f32,
}

/// `STRIDE` of the kernel: the elements of a stretch, which a block reads at a time.
const STRIDE: u64 = 4096;
/// Elements that are worth a block.
const LEAST: u64 = 2 * STRIDE;
/// Elements per block from which on blocks come and go without the device waiting for the slowest.
const ENOUGH: u64 = 8 * STRIDE;
/// Blocks that a large device runs at one time.
const AT_ONCE: u64 = 512;
/// About the number of partial sums that one block adds at the end without being waited for.
const PARTIAL_SUMS: u64 = 4096;

/// The most elements of a block. The number depends on the lengths alone, so that sums have one order everywhere. With
/// up to `ENOUGH` elements each, all blocks run at one time.
fn tile_of(operands: &[NormOperand]) -> u64 {
    let elements: u64 = operands.iter().map(|operand| operand.elements as u64).sum();
    let share = |blocks| elements.div_ceil(blocks).next_multiple_of(STRIDE);
    share(AT_ONCE).clamp(LEAST, ENOUGH).max(share(PARTIAL_SUMS))
}

impl Kernels {
    /// The rank's [`op::NormRecord`](warpweft_plan::op::NormRecord): sum of squares of all operands, in f64,
    /// with the fault word (one u32).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn grad_norm(
        &self,
        operands: &[NormOperand],
        fault: DeviceAddress,
        record: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        // A record begins with an f64.
        for (what, address, bytes) in [("the fault word", fault, 4), ("the record", record, 8)] {
            present(what, address)?;
            element_aligned(what, address, bytes)?;
        }
        let tile = tile_of(operands);
        let tensor = |operand: &NormOperand| {
            present("a main grad", operand.values)?;
            element_aligned("a main grad", operand.values, 4)?;
            let descriptor = TensorArguments {
                values: operand.values,
                count: operand.elements as u64,
                aligned: u32::from(operand.values.number().is_multiple_of(16)),
                reserved: 0,
            };
            Ok((descriptor, (operand.elements as u64).div_ceil(tile)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        // The record is written even if there is nothing to sum.
        let blocks = tensors.iter().map(|(_, tiles)| *tiles).sum::<u64>().max(1);
        let blocks = u32::try_from(blocks).map_err(|_| CudaFailure::Refused("too many main grads".into()))?;
        let counter = size_of::<u64>();
        let table = TileTable::new(&tensors, counter + blocks as usize * size_of::<f64>())?;
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            only: only(&tensors),
            partial: table.workspace.plus(counter),
            started: table.workspace,
            fault,
            record,
        };
        let function = self.function(Family::Norm, c"grad_norm")?;
        Ok(KernelLaunch::new(function, blocks, THREADS, arguments, Some(table.table)))
    }

    /// The verdict over the ranks' records.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn vote(&self, operand: &VoteOperand) -> Result<KernelLaunch, CudaFailure> {
        let VoteOperand { records, ranks, optimizer_step, gradient_scale, vote, max_norm } = *operand;
        for (what, address, bytes) in [
            ("the records", records, 8),
            ("the step count", optimizer_step, 4),
            ("the gradient scale", gradient_scale, 4),
            ("the vote", vote, 4),
        ] {
            present(what, address)?;
            element_aligned(what, address, bytes)?;
        }
        let ranks = narrow("ranks", ranks)?;
        let arguments = VoteArguments { records, optimizer_step, gradient_scale, vote, ranks, max_norm };
        let function = self.function(Family::Norm, c"cast_vote")?;
        Ok(KernelLaunch::new(function, 1, 1, arguments, None))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_follow_from_the_lengths_and_keep_the_partial_sums_few() {
        let operand = |elements| NormOperand { values: DeviceAddress::NULL, elements };
        assert_eq!(tile_of(&[]), LEAST);
        assert_eq!(tile_of(&[operand(1), operand(5)]), LEAST);
        let large = [operand(1 << 31), operand(1 << 30)];
        let tile = tile_of(&large);
        assert!(tile.is_multiple_of(STRIDE));
        assert!(
            large.iter().map(|part| (part.elements as u64).div_ceil(tile)).sum::<u64>() <= PARTIAL_SUMS + 2
        );
    }
}
