//! Memory of a device.
//!
//! Law: one allocation, zeroed, that never moves and is freed when nothing holds it. Plain `cuMemAlloc`:
//! stream-ordered pools are not reached by peers (copies from them run at a fifteenth of the speed).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cudarc::driver::{result, sys};

use super::address::DeviceAddress;
use super::context::Context;
use super::stream::Stream;
use crate::failure::CudaFailure;

/// A range of one device's memory.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: DeviceAddress,
    bytes: usize,
}

impl DeviceMemory {
    /// `bytes` zeroed bytes; none at all for 0. `stream` zeroes them. Only that stream is waited for: a
    /// stream of another rank on the same device may be waiting for this one.
    pub(crate) fn zeroed(context: &Arc<Context>, stream: &Stream, bytes: usize) -> Result<Self, CudaFailure> {
        let context = Arc::clone(context);
        if bytes == 0 {
            return Ok(Self { context, address: DeviceAddress::NULL, bytes });
        }
        context.make_current()?;
        // SAFETY: the context is current; the range is owned by the value made here.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(CudaFailure::driver("cuMemAlloc"))?;
        let memory = Self { context, address: DeviceAddress::new(address), bytes };
        stream.zero(memory.address, bytes)?;
        stream.synchronize()?;
        Ok(memory)
    }

    pub(crate) const fn address(&self) -> DeviceAddress {
        self.address
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes the context of the memory's device the calling thread's.
    pub(crate) fn make_current(&self) -> Result<(), CudaFailure> {
        self.context.make_current()
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.address == DeviceAddress::NULL || self.context.is_abandoned() {
            return;
        }
        if self.context.make_current().is_ok() {
            // SAFETY: allocated once in `zeroed`, freed once here. The driver waits for work that uses it.
            let _ = unsafe { result::free_sync(self.address.number()) };
        }
    }
}

/// 32-bit words of pinned host memory, which streams write and the host reads while they run.
#[derive(Debug)]
pub(crate) struct PinnedWords {
    context: Arc<Context>,
    words: *mut u32,
    count: usize,
}

// SAFETY: the memory is the allocation's alone, and no thread is special to it.
unsafe impl Send for PinnedWords {}
// SAFETY: through `&PinnedWords` the words are reached as atomics alone; streams write whole words.
unsafe impl Sync for PinnedWords {}

impl PinnedWords {
    /// `count` words of 0.
    pub(crate) fn zeroed(context: &Arc<Context>, count: usize) -> Result<Self, CudaFailure> {
        context.make_current()?;
        let bytes = count.max(1) * size_of::<u32>();
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; the range is owned by the value made here.
        let words =
            unsafe { result::malloc_host(bytes, flags) }.map_err(CudaFailure::driver("cuMemHostAlloc"))?;
        let words = words.cast::<u32>();
        // SAFETY: the range has `bytes` bytes and no other code knows it yet.
        unsafe { words.write_bytes(0, count.max(1)) };
        Ok(Self { context: Arc::clone(context), words, count })
    }

    /// Where streams reach word `index`; with unified addressing, that is where the host does.
    pub(crate) fn address(&self, index: usize) -> DeviceAddress {
        debug_assert!(index < self.count, "a word that was never allocated");
        DeviceAddress::new(self.words as u64).plus(index * size_of::<u32>())
    }

    /// The word as it is now.
    pub(crate) fn read(&self, index: usize) -> u32 {
        if index >= self.count {
            return 0;
        }
        self.word(index).load(Ordering::Relaxed)
    }

    /// Sets to 0 a word that no stream is writing now.
    pub(crate) fn clear(&self, index: usize) {
        if index < self.count {
            self.word(index).store(0, Ordering::Relaxed);
        }
    }

    /// A word of those there are.
    fn word(&self, index: usize) -> &AtomicU32 {
        debug_assert!(index < self.count, "a word that was never allocated");
        // SAFETY: callers name a word inside the allocation, which is aligned for it and lives as long as `self`.
        // The host reaches it as an atomic alone; a device that writes it meanwhile writes all of it at once.
        unsafe { AtomicU32::from_ptr(self.words.add(index)) }
    }
}

impl Drop for PinnedWords {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: allocated once in `zeroed`, freed once here.
            let _ = unsafe { result::free_host(self.words.cast()) };
        }
    }
}
