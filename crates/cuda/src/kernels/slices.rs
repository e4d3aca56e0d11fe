//! Sums of the slices that ranks gave of gradients, accumulated in the same pass: the second half of
//! `kernels/sum.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_plan::op::{SumTarget, WireType};

/// Slices of one gradient that are summed into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicesOperand {
    /// The ranks' slices, in rank order; at least one.
    pub slices: Vec<DeviceAddress>,
    /// The result, f32, or what a rounded sum travels in ([`SumTarget::wire`]); written or updated; none of the slices.
    pub into: DeviceAddress,
    /// Number of elements of a slice.
    pub elements: usize,
    /// What is done with the sum.
    pub target: SumTarget,
    /// Where squares of the result go, one f64 for every
    /// [`SQUARED_TOGETHER`](warpweft_plan::op::SQUARED_TOGETHER) elements, and of how many elements they are.
    pub squares: Option<(DeviceAddress, usize)>,
}

/// `SlicesTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SlicesTensor {
    slices: DeviceAddress,
    into: DeviceAddress,
    count: u64,
    slice_count: u32,
    aligned: u16,
    target: u16,
    squares: DeviceAddress,
    counted: u64,
}
const _: () = assert!(size_of::<SlicesTensor>() == 48);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SlicesArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    factor: f32,
    reserved: u32,
}

/// `TILE` of the kernels.
const TILE: u64 = 4096;

/// `ROWS`, what begins a sum, `MORE` and `ROUNDED` of the kernels; those that quantize do not ask.
pub(super) const fn number(target: SumTarget) -> u16 {
    match target {
        SumTarget::Rows | SumTarget::Quantized => 0,
        SumTarget::First => 1,
        SumTarget::More => 2,
        SumTarget::Rounded => 3,
    }
}

impl Kernels {
    /// The sums of slices in rank order in f32: as they are, or rounded to what they travel in, or multiplied by
    /// `factor`, rounded, and stored or added.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for no slices, an address that is missing or misaligned, MXFP8 of elements that are not
    /// whole blocks, and sums to MXFP8 together with others.
    pub fn sum_slices(
        &self,
        wire: WireType,
        operands: &[SlicesOperand],
        factor: f32,
    ) -> Result<KernelLaunch, CudaFailure> {
        let is_quantized = |operand: &SlicesOperand| operand.target == SumTarget::Quantized;
        let quantizes = operands.iter().any(is_quantized);
        if quantizes && !operands.iter().all(is_quantized) {
            return Err(CudaFailure::Refused(
                "sums that are quantized are launched apart from others".into(),
            ));
        }
        let name = match (wire, quantizes) {
            (WireType::F32, false) => c"sum_slices_f32",
            (WireType::F32, true) => c"quantize_slices_f32",
            (WireType::Bf16, false) => c"sum_slices_bf16",
            (WireType::Bf16, true) => c"quantize_slices_bf16",
            (WireType::Mxfp8, false) => c"sum_slices_mxfp8",
            (WireType::Mxfp8, true) => c"quantize_slices_mxfp8",
        };
        for operand in operands {
            check(operand, wire)?;
        }
        let addresses: Vec<DeviceAddress> =
            operands.iter().flat_map(|operand| operand.slices.iter().copied()).collect();
        let counts: Vec<u32> =
            operands.iter().map(|operand| narrow("ranks", operand.slices.len())).collect::<Result<_, _>>()?;
        let tiles = operands.iter().map(|operand| (operand.elements as u64).div_ceil(TILE));
        let bytes = size_of_val(addresses.as_slice());
        let table = TileTable::with_workspace(operands.len(), tiles, bytes, |workspace| {
            let mut slices = workspace;
            let descriptors = operands.iter().zip(counts).map(|(operand, slice_count)| {
                let own = slices;
                slices = slices.plus(size_of_val(operand.slices.as_slice()));
                let (squares, counted) = operand.squares.unwrap_or((DeviceAddress::NULL, 0));
                let mut all = operand.slices.iter().chain([&operand.into]);
                SlicesTensor {
                    slices: own,
                    into: operand.into,
                    count: operand.elements as u64,
                    slice_count,
                    aligned: u16::from(all.all(|address| address.number().is_multiple_of(16))),
                    target: number(operand.target),
                    squares,
                    counted: counted as u64,
                }
            });
            (descriptors.collect(), bytemuck::cast_slice(&addresses).to_vec())
        })?;
        let arguments =
            SlicesArguments { tiles: table.tiles, tensors: table.descriptors, factor, reserved: 0 };
        let function = self.function(Family::Sum, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

/// How many bytes the addresses of its values are multiples of.
const fn alignment(wire: WireType) -> u64 {
    match wire {
        WireType::F32 => 4,
        WireType::Bf16 => 2,
        WireType::Mxfp8 => 1,
    }
}

fn check(operand: &SlicesOperand, wire: WireType) -> Result<(), CudaFailure> {
    if operand.slices.is_empty() {
        return Err(CudaFailure::Refused("no rank contributes to a sum".into()));
    }
    let in_blocks = [wire, operand.target.wire()].contains(&WireType::Mxfp8);
    if in_blocks && !operand.elements.is_multiple_of(WireType::BLOCK) {
        return Err(CudaFailure::Refused(format!(
            "{} elements are not whole blocks of MXFP8",
            operand.elements
        )));
    }
    present("a sum", operand.into)?;
    element_aligned("a sum", operand.into, alignment(operand.target.wire()))?;
    if let Some((squares, _)) = operand.squares {
        if !matches!(operand.target.wire(), WireType::F32) {
            return Err(CudaFailure::Refused("squares are taken of sums that are not rounded".into()));
        }
        present("squares", squares)?;
        element_aligned("squares", squares, 8)?;
    }
    for slice in &operand.slices {
        present("a rank's slice", *slice)?;
        element_aligned("a rank's slice", *slice, alignment(wire))?;
    }
    Ok(())
}

/// `SCALED_TOGETHER` of the kernels.
#[cfg(test)]
const SCALED_TOGETHER: usize = WireType::BLOCK;
#[cfg(test)]
mirrors!(Family::Sum, TILE, SCALED_TOGETHER);
