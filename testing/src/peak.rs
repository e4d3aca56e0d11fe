//! The most memory that was allocated at once, over all threads, for tests that promise a limit.
//!
//! Law: counted where [`Allocator`](crate::Allocator) is the global allocator, and nowhere else.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Of an allocation.
pub(crate) fn allocated(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

/// Of what is given back.
pub(crate) fn freed(bytes: usize) {
    LIVE.fetch_sub(bytes, Ordering::Relaxed);
}

/// One measurement at a time.
pub static ALONE: Mutex<()> = Mutex::new(());

/// Bytes that `work` allocated at most at once, beyond what was there before.
pub fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    work();
    PEAK.load(Ordering::Relaxed) - before
}

/// Bytes of a mebibyte.
pub const MIB: usize = 1 << 20;
