//! bf16 values one by one, and their sums: `kernels/elementwise.cu`.
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

/// `ElementwiseArguments` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    values: DeviceAddress,
    out: DeviceAddress,
    partial: DeviceAddress,
    sum: DeviceAddress,
    count: u64,
    seed: u32,
    scale: f32,
}
const _: () = assert!(size_of::<Arguments>() == 48);

/// What is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summed {
    /// The values.
    Values,
    /// Their squares.
    Squares,
}

/// Prepares launches on vectors of bf16, each of `count` elements that begin at a multiple of 16 bytes.
#[derive(Clone, Debug)]
pub struct ElementwiseKernels {
    gelu: Function,
    gelu_backward: Function,
    fill: Function,
    uniform: Function,
    sum_values: Function,
    sum_squares: Function,
    sum_of_parts: Function,
}

impl Kernels {
    /// The kernels, compiled and loaded.
    ///
    /// # Errors
    /// [`CudaFailure::Compile`], [`CudaFailure::Call`].
    pub fn elementwise(&self) -> Result<ElementwiseKernels, CudaFailure> {
        let function = |name| self.function(Family::Elementwise, name);
        Ok(ElementwiseKernels {
            gelu: function(c"gelu")?,
            gelu_backward: function(c"gelu_backward")?,
            fill: function(c"fill")?,
            uniform: function(c"uniform")?,
            sum_values: function(c"sum_values")?,
            sum_squares: function(c"sum_squares")?,
            sum_of_parts: function(c"sum_of_parts")?,
        })
    }
}

impl ElementwiseKernels {
    /// Bytes that [`ElementwiseKernels::sum`] needs for its parts.
    pub const PARTIAL_BYTES: usize = PARTIALS as usize * size_of::<f64>();

    /// `y = gelu(x)`, in the form with tanh.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn gelu(
        &self,
        x: DeviceAddress,
        y: DeviceAddress,
        count: usize,
    ) -> Result<KernelLaunch, CudaFailure> {
        vector(&self.gelu, Arguments { values: read(x)?, ..onto(y, count)? })
    }

    /// `gradient *= gelu'(x)`: the gradient of gelu(x) becomes that of x.
    ///
    /// # Errors
    /// As [`ElementwiseKernels::gelu`].
    pub fn gelu_backward(
        &self,
        x: DeviceAddress,
        gradient: DeviceAddress,
        count: usize,
    ) -> Result<KernelLaunch, CudaFailure> {
        vector(&self.gelu_backward, Arguments { values: read(x)?, ..onto(gradient, count)? })
    }

    /// Every element becomes `value`.
    ///
    /// # Errors
    /// As [`ElementwiseKernels::gelu`].
    pub fn fill(&self, value: f32, y: DeviceAddress, count: usize) -> Result<KernelLaunch, CudaFailure> {
        vector(&self.fill, Arguments { scale: value, ..onto(y, count)? })
    }

    /// Element i becomes `scale` times a number in [−1, 1) that depends on `seed` and i alone.
    ///
    /// # Errors
    /// As [`ElementwiseKernels::gelu`].
    pub fn uniform(
        &self,
        seed: u32,
        scale: f32,
        y: DeviceAddress,
        count: usize,
    ) -> Result<KernelLaunch, CudaFailure> {
        vector(&self.uniform, Arguments { seed, scale, ..onto(y, count)? })
    }

    /// Two launches, to run one after the other: the f32 at `sum` becomes the sum of the values or of their
    /// squares. The parts take [`ElementwiseKernels::PARTIAL_BYTES`] at `partial`.
    ///
    /// # Errors
    /// As [`ElementwiseKernels::gelu`].
    pub fn sum(
        &self,
        summed: Summed,
        x: DeviceAddress,
        partial: DeviceAddress,
        sum: DeviceAddress,
        count: usize,
    ) -> Result<[KernelLaunch; 2], CudaFailure> {
        present("the parts of a sum", partial)?;
        present("a sum", sum)?;
        element_aligned("the parts of a sum", partial, 8)?;
        element_aligned("a sum", sum, 4)?;
        let parts = match summed {
            Summed::Values => &self.sum_values,
            Summed::Squares => &self.sum_squares,
        };
        let arguments =
            Arguments { values: read(x)?, partial, sum, count: count as u64, ..Arguments::zeroed() };
        Ok([
            KernelLaunch::new(parts.clone(), PARTIALS, THREADS, arguments, None),
            KernelLaunch::new(self.sum_of_parts.clone(), 1, THREADS, arguments, None),
        ])
    }
}

fn read(values: DeviceAddress) -> Result<DeviceAddress, CudaFailure> {
    present("the values", values)?;
    element_aligned("the values", values, 16)?;
    Ok(values)
}

fn onto(out: DeviceAddress, count: usize) -> Result<Arguments, CudaFailure> {
    present("the result", out)?;
    element_aligned("the result", out, 16)?;
    Ok(Arguments { out, count: count as u64, ..Arguments::zeroed() })
}

fn vector(function: &Function, arguments: Arguments) -> Result<KernelLaunch, CudaFailure> {
    let blocks = arguments.count.div_ceil(VALUES as u64 * u64::from(THREADS));
    let blocks = narrow("blocks", usize::try_from(blocks).unwrap_or(usize::MAX))?;
    Ok(KernelLaunch::new(function.clone(), blocks, THREADS, arguments, None))
}

#[cfg(test)]
mirrors!(Family::Elementwise, VALUES, PARTIALS);
