//! Alpha and beta of one product, where alpha is known on the device alone.
//!
//! Law: a product's scalars are its own and are written before each of its runs, on the same stream: no other
//! product finds them changed.

use super::blas::{Blas, SCALE_ALIGNMENT, Scratch};
use super::lent::Lent;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use crate::kernels::{ProductScalars, ScalarsOperand};
use crate::surface::CudaHandles;

/// The scalars of one product of tensors whose block scales are relative to their amaxes.
#[derive(Debug)]
pub(super) struct Scalars {
    kernel: ProductScalars,
    /// Alpha, and at the next place that is aligned as scales are, beta.
    words: Scratch,
}

impl Scalars {
    pub(super) fn new(blas: &Blas) -> Result<Self, CudaFailure> {
        let words = blas.scratch(2 * SCALE_ALIGNMENT as usize)?;
        Ok(Self { kernel: blas.kernels().product_scalars()?, words })
    }

    /// Alpha and beta of factors with these amaxes, once what is enqueued here has run. The handles were checked.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an amax that is absent, too short or misaligned.
    pub(super) fn enqueue(
        &mut self,
        handles: &CudaHandles,
        amaxes: [Option<Lent<'_>>; 2],
        adds: bool,
    ) -> Result<[DeviceAddress; 2], CudaFailure> {
        let [Some(first), Some(second)] = amaxes.map(|amax| amax.filter(|amax| amax.bytes() >= 4)) else {
            return Err(CudaFailure::Refused("a factor in NVFP4 came without its amax".into()));
        };
        let alpha = self.words.write().address();
        let beta = alpha.plus(SCALE_ALIGNMENT as usize);
        let operand = ScalarsOperand { amaxes: [first.address(), second.address()], alpha, beta };
        let launch = self.kernel.launch(&operand, adds)?;
        // SAFETY: the handles' context is current, and they are of the GPU the kernel was loaded for. The amaxes
        // were lent with their length, and the words are this value's own. A launch without a table need not
        // outlive its enqueuing: its arguments are copied. The kernel keeps its module, and what is captured
        // outlives neither it nor the words (RH-1).
        handles.driver(|| unsafe { launch.enqueue(handles.stream()) })?;
        Ok([alpha, beta])
    }
}
