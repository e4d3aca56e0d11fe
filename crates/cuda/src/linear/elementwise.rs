//! Elementwise operations between the products of a stack of linear layers.

use half::bf16;

use super::device::Device;
use crate::CudaFailure;
use crate::gemm;
use crate::kernels::Summed;
use crate::{CudaHandles, DeviceSlice, DeviceSliceMut};

/// Elementwise kernels on bf16 vectors of any length, and their sums. Arithmetic is f32, rounded to bf16 once.
///
/// One value serves one lane, as a [`Linear`](super::Linear) does, and keeps **LI-1** and **LI-2**.
#[derive(Debug)]
pub struct Elementwise(gemm::Elementwise);

impl Elementwise {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn new(device: &Device) -> Result<Self, CudaFailure> {
        Ok(Self(gemm::Elementwise::new(&device.blas)?))
    }

    /// y = GELU(x) in its tanh form (Hendrycks and Gimpel, 2016).
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for lengths that differ, before anything is enqueued.
    pub fn gelu(
        &self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.0.gelu(handles, x, y)
    }

    /// Turns the gradient of GELU(x) into that of x, in place.
    ///
    /// # Errors
    /// As [`Elementwise::gelu`].
    pub fn gelu_backward(
        &self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        gradient: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.0.gelu_backward(handles, x, gradient)
    }

    /// Every element becomes `value`.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn fill(
        &self,
        handles: &CudaHandles,
        value: f32,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.0.fill(handles, value, y)
    }

    /// Element i becomes `amplitude` times a number in [−1, 1) that depends on `seed` and i alone.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn uniform(
        &self,
        handles: &CudaHandles,
        seed: u32,
        amplitude: f32,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.0.uniform(handles, seed, amplitude, y)
    }

    /// The sum of all elements into `sum[0]`; the same bits in every run.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn sum(
        &mut self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        sum: DeviceSliceMut<'_, f32>,
    ) -> Result<(), CudaFailure> {
        self.0.sum(handles, Summed::Values, x, sum)
    }

    /// The sum of their squares into `sum[0]`.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn sum_of_squares(
        &mut self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        sum: DeviceSliceMut<'_, f32>,
    ) -> Result<(), CudaFailure> {
        self.0.sum(handles, Summed::Squares, x, sum)
    }
}
