//! Accumulation, and sums and maxima over ranks: `kernels/sum.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable, only};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_backend::local::Combination;
use warpweft_format::ElementType;
use warpweft_plan::op::Reduction;

/// A contribution to a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccumulateOperand {
    /// The contribution, f32.
    pub from: DeviceAddress,
    /// The sum, f32, updated; not the same memory.
    pub into: DeviceAddress,
    /// Number of elements.
    pub elements: usize,
    /// Where squares of the sum go, one f64 for every [`SQUARED_TOGETHER`](warpweft_plan::op::SQUARED_TOGETHER)
    /// elements, and of how many elements they are.
    pub squares: Option<(DeviceAddress, usize)>,
}

/// Vectors of several ranks that are combined into one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CombineOperand {
    /// The ranks' vectors in rank order; at least one.
    pub sources: Vec<DeviceAddress>,
    /// The result, of the same type, written; may be one of the sources.
    pub to: DeviceAddress,
    /// Number of elements.
    pub elements: usize,
}

/// `AccumulateTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AccumulateTensor {
    from: DeviceAddress,
    into: DeviceAddress,
    count: u64,
    aligned: u32,
    reserved: u32,
    squares: DeviceAddress,
    counted: u64,
}
const _: () = assert!(size_of::<AccumulateTensor>() == 48);

/// `CombineTensor` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CombineTensor {
    sources: DeviceAddress,
    to: DeviceAddress,
    count: u64,
    source_count: u32,
    aligned: u32,
}
const _: () = assert!(size_of::<CombineTensor>() == 32);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct AccumulateArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    factor: f32,
    reserved: u32,
    only: AccumulateTensor,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CombineArguments {
    tiles: TileArguments,
    tensors: DeviceAddress,
    only: CombineTensor,
}

/// `TILE` of the kernels.
const TILE: u64 = 4096;

impl Kernels {
    /// `into += factor · from`, or `into = factor · from` for the first contribution of a step; the product is
    /// rounded before it is added.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn accumulate(
        &self,
        operands: &[AccumulateOperand],
        factor: f32,
        first: bool,
    ) -> Result<KernelLaunch, CudaFailure> {
        let tensor = |operand: &AccumulateOperand| {
            for (what, address) in [("a contribution", operand.from), ("a sum", operand.into)] {
                present(what, address)?;
                element_aligned(what, address, 4)?;
            }
            if let Some((squares, _)) = operand.squares {
                present("squares", squares)?;
                element_aligned("squares", squares, 8)?;
            }
            let (squares, counted) = operand.squares.unwrap_or((DeviceAddress::NULL, 0));
            let aligned = [operand.from, operand.into].iter().all(|part| part.number().is_multiple_of(16));
            let descriptor = AccumulateTensor {
                from: operand.from,
                into: operand.into,
                count: operand.elements as u64,
                aligned: u32::from(aligned),
                reserved: 0,
                squares,
                counted: counted as u64,
            };
            Ok((descriptor, (operand.elements as u64).div_ceil(TILE)))
        };
        let tensors: Vec<_> = operands.iter().map(tensor).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&tensors, 0)?;
        let arguments = AccumulateArguments {
            tiles: table.tiles,
            tensors: table.descriptors,
            factor,
            reserved: 0,
            only: only(&tensors),
        };
        let name = if first { c"accumulate_first" } else { c"accumulate_more" };
        let function = self.function(Family::Sum, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }

    /// The element-wise sum or maximum of the ranks' vectors, in rank order in f32; of bf16, rounded once. A maximum
    /// ignores NaN unless all are.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for no sources, another element type, an address that is missing or misaligned.
    pub fn combine(
        &self,
        combination: Combination,
        operands: &[CombineOperand],
    ) -> Result<KernelLaunch, CudaFailure> {
        let Combination { reduction, element } = combination;
        let name = match (reduction, element) {
            (Reduction::Sum, ElementType::F32) => c"sum_f32",
            (Reduction::Max, ElementType::F32) => c"max_f32",
            (Reduction::Sum, ElementType::Bf16) => c"sum_bf16",
            (Reduction::Max, ElementType::Bf16) => c"max_bf16",
            (_, ElementType::U8 | ElementType::U32) => {
                return Err(CudaFailure::Refused(format!("no {reduction:?} of {element} values")));
            }
        };
        for CombineOperand { sources, to, .. } in operands {
            if sources.is_empty() {
                return Err(CudaFailure::Refused("no rank contributes to a sum".into()));
            }
            present("a result", *to)?;
            element_aligned("a result", *to, element.bytes() as u64)?;
            for source in sources {
                present("a rank's vector", *source)?;
                element_aligned("a rank's vector", *source, element.bytes() as u64)?;
            }
        }
        let addresses: Vec<DeviceAddress> =
            operands.iter().flat_map(|operand| operand.sources.iter().copied()).collect();
        let counts: Vec<u32> = operands
            .iter()
            .map(|operand| narrow("ranks", operand.sources.len()))
            .collect::<Result<_, _>>()?;
        let tiles = operands.iter().map(|operand| (operand.elements as u64).div_ceil(TILE));
        let mut only = CombineTensor::zeroed();
        let table = TileTable::with_workspace(
            operands.len(),
            tiles,
            size_of_val(addresses.as_slice()),
            |workspace| {
                let mut sources = workspace;
                let descriptors = operands.iter().zip(counts).map(|(operand, source_count)| {
                    let own = sources;
                    sources = sources.plus(size_of_val(operand.sources.as_slice()));
                    let mut parts = operand.sources.iter().chain([&operand.to]);
                    let aligned = parts.all(|part| part.number().is_multiple_of(16));
                    CombineTensor {
                        sources: own,
                        to: operand.to,
                        count: operand.elements as u64,
                        source_count,
                        aligned: u32::from(aligned),
                    }
                });
                let descriptors: Vec<_> = descriptors.collect();
                only = descriptors.first().copied().unwrap_or(only);
                (descriptors, bytemuck::cast_slice(&addresses).to_vec())
            },
        )?;
        let arguments = CombineArguments { tiles: table.tiles, tensors: table.descriptors, only };
        let function = self.function(Family::Sum, name)?;
        Ok(KernelLaunch::new(function, table.blocks(), THREADS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Sum, TILE);
