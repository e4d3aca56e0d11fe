//! The steps of orthogonalization around its products: `kernels/orthogonalize.cu`.
//!
//! Law: launches are prepared by value, without tables: nothing is allocated, so a closure may prepare one in
//! every step.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, THREADS};
use super::module::{Function, Kernels};
use super::source::Family;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// `VALUES` of the kernels.
const VALUES: usize = 8;
/// `PARTIALS` of the kernels.
const PARTIALS: u32 = 512;

/// `OrthogonalizeArguments` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    matrix: DeviceAddress,
    narrow: DeviceAddress,
    wide: DeviceAddress,
    partial: DeviceAddress,
    count: u64,
}
const _: () = assert!(size_of::<Arguments>() == 40);

/// Prepares launches on matrices of `count` elements that begin at a multiple of 16 bytes.
#[derive(Clone, Debug)]
pub struct OrthogonalizeKernels {
    squares: Function,
    normalize: Function,
    widen: Function,
}

impl Kernels {
    /// The kernels, compiled and loaded.
    ///
    /// # Errors
    /// [`CudaFailure::Compile`], [`CudaFailure::Call`].
    pub fn orthogonalize(&self) -> Result<OrthogonalizeKernels, CudaFailure> {
        let function = |name| self.function(Family::Orthogonalize, name);
        Ok(OrthogonalizeKernels {
            squares: function(c"squares")?,
            normalize: function(c"normalize")?,
            widen: function(c"widen")?,
        })
    }
}

impl OrthogonalizeKernels {
    /// Bytes that [`OrthogonalizeKernels::normalize`] needs for the parts of a sum.
    pub const PARTIAL_BYTES: usize = PARTIALS as usize * size_of::<f64>();

    /// Two launches, to run one after the other: `narrow`, bf16, becomes `matrix`, f32, divided by its Frobenius norm.
    /// The parts of the sum take [`OrthogonalizeKernels::PARTIAL_BYTES`] at `partial`.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn normalize(
        &self,
        matrix: DeviceAddress,
        partial: DeviceAddress,
        narrow: DeviceAddress,
        count: usize,
    ) -> Result<[KernelLaunch; 2], CudaFailure> {
        check("the matrix", matrix)?;
        check("the parts of a sum", partial)?;
        check("the normalized matrix", narrow)?;
        let arguments = Arguments { matrix, narrow, partial, count: count as u64, ..Arguments::zeroed() };
        Ok([
            KernelLaunch::new(self.squares.clone(), PARTIALS, THREADS, arguments, None),
            KernelLaunch::new(self.normalize.clone(), blocks(count)?, THREADS, arguments, None),
        ])
    }

    /// `wide`, f32, becomes `narrow`, bf16.
    ///
    /// # Errors
    /// As [`OrthogonalizeKernels::normalize`].
    pub fn widen(
        &self,
        narrow: DeviceAddress,
        wide: DeviceAddress,
        count: usize,
    ) -> Result<KernelLaunch, CudaFailure> {
        check("the narrow matrix", narrow)?;
        check("the result", wide)?;
        let arguments = Arguments { narrow, wide, count: count as u64, ..Arguments::zeroed() };
        Ok(KernelLaunch::new(self.widen.clone(), blocks(count)?, THREADS, arguments, None))
    }
}

fn check(what: &str, address: DeviceAddress) -> Result<(), CudaFailure> {
    present(what, address)?;
    element_aligned(what, address, 16)
}

fn blocks(count: usize) -> Result<u32, CudaFailure> {
    narrow("blocks", count.div_ceil(VALUES * THREADS as usize))
}

#[cfg(test)]
mirrors!(Family::Orthogonalize, VALUES, PARTIALS);
