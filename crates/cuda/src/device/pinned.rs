//! Pinned memory of the host into which a step copies a rank's state.
//!
//! Law: one allocation that never moves and is freed when nothing holds it: the rank, plans that copy into it, and
//! whoever reads it. No slice of it is ever made: bytes are copied out, so one that a stream writes meanwhile is read
//! as it was or as it becomes. That nobody reads then is for who runs the steps ([`SnapshotMemory`]).

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::address::DeviceAddress;
use super::context::Context;
use crate::failure::CudaFailure;
use warpweft_backend::{BackendError, SnapshotMemory};
use warpweft_base::id::RankId;
use warpweft_plan::layout::Region;

/// The snapshot of a rank.
#[derive(Debug)]
pub(crate) struct PinnedSnapshot {
    context: Arc<Context>,
    rank: RankId,
    start: *mut u8,
    bytes: usize,
}

// SAFETY: the memory is the allocation's alone, and no thread is special to it.
unsafe impl Send for PinnedSnapshot {}
// SAFETY: through `&PinnedSnapshot` bytes are copied in and out, and no reference to them is made. Who writes at a
// step boundary, and streams of the rank, do not meet a reader: the session has one save at a time.
unsafe impl Sync for PinnedSnapshot {}

impl PinnedSnapshot {
    /// `bytes` zeroed bytes.
    pub(crate) fn zeroed(context: &Arc<Context>, rank: RankId, bytes: usize) -> Result<Self, CudaFailure> {
        context.make_current()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the context is current; the range is owned by the value made here.
        let start = unsafe { result::malloc_host(bytes.max(1), flags) }
            .map_err(CudaFailure::driver("cuMemHostAlloc"))?
            .cast::<u8>();
        // SAFETY: the range has `bytes` bytes and no other code knows it yet.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Self { context: Arc::clone(context), rank, start, bytes })
    }

    /// Where streams write `region`; with unified addressing, that is where the host reads it.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a region that ends beyond the snapshot.
    pub(crate) fn address(&self, region: Region) -> Result<DeviceAddress, CudaFailure> {
        self.first(region)
            .map(|first| DeviceAddress::new(first as u64))
            .ok_or_else(|| CudaFailure::Refused(format!("the snapshot has {} bytes", self.bytes)))
    }

    /// The first byte of a region of so many bytes.
    fn fitting(&self, region: Region, bytes: usize) -> Result<*mut u8, BackendError> {
        self.first(region).filter(|_| region.bytes == bytes).ok_or_else(|| {
            let reason = format!("it does not fit a snapshot of {} bytes", self.bytes);
            BackendError::Host { rank: self.rank, bytes, reason }
        })
    }

    /// The first byte of a region, which lies in the snapshot.
    fn first(&self, region: Region) -> Option<*mut u8> {
        let end = region.offset.checked_add(region.bytes)?;
        // SAFETY: the offset is at most the size of the allocation.
        (end <= self.bytes).then(|| unsafe { self.start.add(region.offset) })
    }
}

impl SnapshotMemory for PinnedSnapshot {
    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        let first = self.fitting(region, bytes.len())?;
        // SAFETY: `first` begins as many bytes of the allocation as `bytes` has, which lies elsewhere. They were
        // zeroed, so they are initialized; what a device writes is no access of this program.
        unsafe { std::ptr::copy_nonoverlapping(first, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn write(&self, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        let first = self.fitting(region, bytes.len())?;
        // SAFETY: as above, the other way; no reference to these bytes exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), first, bytes.len()) };
        Ok(())
    }
}

impl Drop for PinnedSnapshot {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: allocated once in `zeroed`, freed once here. Plans that copy into it hold it.
            let _ = unsafe { result::free_host(self.start.cast()) };
        }
    }
}
