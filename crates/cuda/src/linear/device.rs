//! One GPU, for the products of one rank's closure.

use std::rc::Rc;

use bytemuck::Pod;

use crate::CudaFailure;

#[cfg(any(test, feature = "internals"))]
use crate::gemm::Queue;
use crate::gemm::{Blas, DeviceBuffer};
use crate::{ComputeCapability, DeviceOrdinal};

/// cuBLASLt on one GPU, with a workspace that all layers made from it share.
///
/// It serves one lane: what its layers enqueue must run in order, as the calls of a closure do. It belongs to
/// the thread it was opened on.
#[derive(Clone, Debug)]
pub struct Device {
    pub(super) blas: Rc<Blas>,
}

impl Device {
    /// Opens the GPU and makes its primary context current on this thread. For a closure's factory, which
    /// knows which GPU a rank has.
    ///
    /// # Errors
    /// [`CudaFailure::Call`] without a driver, NVRTC, cuBLASLt or such a device.
    pub fn open(ordinal: DeviceOrdinal) -> Result<Self, CudaFailure> {
        Ok(Self { blas: Rc::new(Blas::open(ordinal)?) })
    }

    /// `len` zeros on the GPU, for what a closure keeps constant or computes temporarily.
    ///
    /// # Errors
    /// [`CudaFailure::Call`] when memory is short.
    pub fn buffer<T: Pod>(&self, len: usize) -> Result<DeviceBuffer<T>, CudaFailure> {
        DeviceBuffer::zeroed(&self.blas, len)
    }

    /// A queue of its own, for layers without a session.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    #[cfg(any(test, feature = "internals"))]
    #[doc(hidden)]
    pub fn queue(&self) -> Result<Queue, CudaFailure> {
        Queue::new(&self.blas)
    }

    /// What the GPU can do.
    #[must_use]
    pub fn capability(&self) -> ComputeCapability {
        self.blas.capability()
    }
}
