//! Finite check: values that are too large or no numbers (`kernels/finite_check.cu`).

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::ElementType;

/// Values to compare with a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FiniteCheckOperand {
    /// f32 or bf16 values.
    pub values: DeviceAddress,
    /// How many.
    pub elements: usize,
    /// The largest magnitude that passes.
    pub largest: f32,
}

/// `FiniteCheckTensor` of the kernel.
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
    word: DeviceAddress,
    number: u32,
    reserved: u32,
    only: TensorArguments,
}
const _: () = assert!(size_of::<Arguments>() == 72);

/// Groups of four elements that a thread has, the same as in the kernel.
const GROUPS: u32 = 4;
/// Elements of a tile.
const TILE: u64 = (GROUPS * 4 * THREADS) as u64;

impl Kernels {
    /// Sets the u32 at `word`, which may be the host's, from 0 to `number` if a value of `operands`, f32 or bf16 as
    /// `element` says, is larger than its largest magnitude or no number. Else it stays as it is, and also where the
    /// [`op::Vote`](warpweft_plan::op::Vote) at `vote` skips; `vote` may be null.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, and another type of elements.
    pub fn finite_check(
        &self,
        element: ElementType,
        operands: &[FiniteCheckOperand],
        vote: DeviceAddress,
        (word, number): (DeviceAddress, u32),
    ) -> Result<KernelLaunch, CudaFailure> {
        let name = match element {
            ElementType::F32 => c"finite_check_f32",
            ElementType::Bf16 => c"finite_check_bf16",
            other => return Err(CudaFailure::Refused(format!("values must be f32 or bf16, not {other}"))),
        };
        present("the word to set", word)?;
        element_aligned("the vote", vote, 4)?;
        element_aligned("the word to set", word, 4)?;
        let tensor = |operand: &FiniteCheckOperand| {
            present("values to check", operand.values)?;
            element_aligned("values to check", operand.values, element.bytes() as u64)?;
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
            word,
            number,
            reserved: 0,
            only: only(&tensors),
        };
        let function = self.function(Family::FiniteCheck, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::FiniteCheck, GROUPS);
