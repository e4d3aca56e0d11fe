//! Device memory for the tables that kernels read: allocated, filled once, freed with its last launch.
//!
//! Law: a table is written when it is made and by kernels, never by the host again, so a launch may be
//! enqueued any number of times without looking at it.

use std::fmt;

use cudarc::driver::{result, sys};

use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// Bytes on the device whose context was current when they were allocated.
pub(super) struct DeviceTable {
    address: sys::CUdeviceptr,
    bytes: usize,
    context: sys::CUcontext,
}

// SAFETY: the handles are names the driver looks up; its calls are thread safe.
unsafe impl Send for DeviceTable {}
// SAFETY: as above; this process changes nothing through `&DeviceTable`.
unsafe impl Sync for DeviceTable {}

impl DeviceTable {
    /// Allocates `bytes` bytes in the current context and fills them with what `content` makes from their
    /// address.
    ///
    /// # Errors
    /// [`CudaFailure::Call`] when there is no memory or no current context.
    pub(super) fn fill(
        bytes: usize,
        content: impl FnOnce(DeviceAddress) -> Vec<u8>,
    ) -> Result<Self, CudaFailure> {
        let context = result::ctx::get_current().map_err(CudaFailure::driver("cuCtxGetCurrent"))?;
        let context = context.ok_or_else(|| {
            CudaFailure::Refused(
                "no context is current on this thread; make the device's current first".into(),
            )
        })?;
        // SAFETY: a context is current; the memory is written below before anything reads it.
        let address =
            unsafe { result::malloc_sync(bytes.max(1)) }.map_err(CudaFailure::driver("cuMemAlloc"))?;
        let table = Self { address, bytes, context };
        let mut content = content(table.address());
        content.resize(bytes, 0);
        // SAFETY: the allocation has `bytes` bytes, and so has `content`.
        unsafe { result::memcpy_htod_sync(address, &content) }
            .map_err(CudaFailure::driver("cuMemcpyHtoD"))?;
        // From pageable memory it may still be on its way, on the legacy stream, for which no lane waits.
        // SAFETY: a context is current, and every context has that stream.
        unsafe { result::stream::synchronize(std::ptr::null_mut()) }
            .map_err(CudaFailure::driver("cuStreamSynchronize"))?;
        Ok(table)
    }

    /// Where the table begins; a multiple of 256.
    pub(super) const fn address(&self) -> DeviceAddress {
        DeviceAddress::new(self.address)
    }
}

impl Drop for DeviceTable {
    fn drop(&mut self) {
        let previous = result::ctx::get_current().ok().flatten();
        // SAFETY: allocated once in `fill` under this context, freed once here. If the context is gone, so is
        // the memory, and a failure leaves nothing to be done.
        unsafe {
            if result::ctx::set_current(self.context).is_ok() {
                let _ = result::free_sync(self.address);
            }
            let _ = result::ctx::set_current(previous.unwrap_or(std::ptr::null_mut()));
        }
    }
}

impl fmt::Debug for DeviceTable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DeviceTable({} bytes at {})", self.bytes, self.address())
    }
}
