//! Norm record and vote: `kernels/norm.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_plan::op::SQUARED_TOGETHER;

/// A main grad that counts towards the norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormOperand {
    /// Where its squares come from.
    pub from: NormFrom,
    /// How many elements it has.
    pub elements: usize,
}

/// Where squares come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormFrom {
    /// Its f32 values.
    Values(DeviceAddress),
    /// Those that a sum took of it, f64.
    Squares(DeviceAddress),
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
    squares: DeviceAddress,
    count: u64,
    groups: u32,
    first_group: u32,
    aligned: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<TensorArguments>() == 40);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    partial: DeviceAddress,
    started: DeviceAddress,
    fault: DeviceAddress,
    record: DeviceAddress,
    groups: u32,
    reserved: u32,
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

/// Blocks of a group whose squares are added.
const GROUP: u32 = 8;
/// Groups of which one block of threads reads the squares.
const GROUPS_OF_SQUARES: u32 = THREADS / GROUP;

/// The number of groups of blocks in a number of elements.
fn groups_of(elements: usize) -> Result<u32, CudaFailure> {
    let groups = elements.div_ceil(SQUARED_TOGETHER).div_ceil(GROUP as usize);
    // Every one of them may be a block of threads.
    i32::try_from(groups)
        .map(i32::unsigned_abs)
        .map_err(|_| CudaFailure::Refused("too many main grads".into()))
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
        let mut groups = 0_u32;
        let mut tensors = Vec::with_capacity(operands.len());
        for operand in operands {
            let (address, alignment) = match operand.from {
                NormFrom::Values(values) => (values, 4),
                NormFrom::Squares(squares) => (squares, 8),
            };
            present("a main grad", address)?;
            element_aligned("a main grad", address, alignment)?;
            let own = groups_of(operand.elements)?;
            let (values, squares, tiles) = match operand.from {
                NormFrom::Values(values) => (values, DeviceAddress::NULL, own),
                NormFrom::Squares(squares) => (DeviceAddress::NULL, squares, own.div_ceil(GROUPS_OF_SQUARES)),
            };
            let descriptor = TensorArguments {
                values,
                squares,
                count: operand.elements as u64,
                groups: own,
                first_group: groups,
                aligned: u32::from(values.number().is_multiple_of(16)),
                reserved: 0,
            };
            groups =
                groups.checked_add(own).ok_or_else(|| CudaFailure::Refused("too many main grads".into()))?;
            tensors.push((descriptor, u64::from(tiles)));
        }
        let counter = size_of::<u64>();
        let table = TileTable::new(&tensors, counter + groups as usize * size_of::<f64>())?;
        // The record is written even if there is nothing to sum.
        let blocks = table.blocks().max(1);
        let arguments = Arguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            only: only(&tensors),
            partial: table.workspace.plus(counter),
            started: table.workspace,
            fault,
            record,
            groups,
            reserved: 0,
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
mirrors!(Family::Norm, GROUP, SQUARED_TOGETHER);
