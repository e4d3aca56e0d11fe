//! Device memory owned by a closure.
//!
//! Law: it is zeroed when it is made. When it is dropped it is freed after the work that uses it; if a
//! captured step may use it, once no such capture is left (RH-1). That is known of a device whose layers have
//! worked in a call.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::blas::{Blas, LaneMemory};
use crate::failure::CudaFailure;
use crate::surface::{DeviceSlice, DeviceSliceMut};

/// Memory of one GPU that belongs to a closure, or to a program without a session.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    memory: LaneMemory,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    pub(crate) fn zeroed(blas: &Blas, len: usize) -> Result<Self, CudaFailure> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            CudaFailure::Refused(format!("{len} elements are more than memory has addresses for"))
        })?;
        Ok(Self { memory: blas.memory(bytes)?, len, elements: PhantomData })
    }

    /// All elements, to be read.
    #[must_use]
    pub fn read(&self) -> DeviceSlice<'_, T> {
        // SAFETY: the elements are this value's own and live as long as the slice; memory is freed after work
        // that uses it.
        unsafe { DeviceSlice::from_address(self.memory.address(), self.len) }
    }

    /// All elements, to be written.
    #[must_use]
    pub fn write(&mut self) -> DeviceSliceMut<'_, T> {
        // SAFETY: as above, and the value is borrowed exclusively.
        unsafe { DeviceSliceMut::from_address(self.memory.address(), self.len) }
    }
}
