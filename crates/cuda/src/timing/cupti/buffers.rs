//! Memory that CUPTI fills with records, and the right to use CUPTI.
//!
//! This is the only place in the library with state of the whole process. There is one CUPTI in a process,
//! and the functions through which it requests memory and gives it back take nothing that would say whose it
//! is. What is kept here is what those functions need, a list of filled buffers, and the right of one owner
//! to read it.
//!
//! Laws:
//! - **CU-3** There is one [`Claim`] at a time. Where CUPTI had to be left on with no owner to read it, there
//!   is none any more.
//! - What CUPTI was given it gives back, and that frees it: at the latest when the claim ends, or as it
//!   arrives where that has ended.
//! - The functions that CUPTI calls do next to nothing: they allocate, and they put away. The owner reads the
//!   records.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use cudarc::cupti::sys;
use cudarc::driver;

use warpweft_backend::bell::lock;

/// Words of 8 bytes in a buffer: 512 KiB, for about two thousand activities. CUPTI clears a buffer before it
/// uses it.
const WORDS: usize = 1 << 16;

/// CUPTI is free.
const FREE: u8 = 0;
/// CUPTI has an owner.
const TAKEN: u8 = 1;
/// It was left on, and can no longer be had.
const LEFT: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(FREE);
static FILLED: Mutex<Vec<Filled>> = Mutex::new(Vec::new());

/// The right to use CUPTI. It ends when it is dropped.
#[derive(Debug)]
pub(super) struct Claim(());

/// A buffer with records.
#[derive(Debug)]
pub(super) struct Filled {
    words: Box<[u64]>,
    /// Bytes that hold records.
    valid: usize,
}

impl Claim {
    /// The right to use CUPTI, unless it is taken.
    pub(super) fn make() -> Option<Self> {
        let free = STATE.compare_exchange(FREE, TAKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        // Made only if it is one: the end of a claim frees the right.
        free.then(|| Self(()))
    }

    /// What CUPTI gave back since the last call.
    pub(super) fn filled(&self) -> Vec<Filled> {
        std::mem::take(&mut *lock(&FILLED))
    }

    /// CUPTI is left on: when this ends the right is not freed, and what CUPTI gives back is not read.
    pub(super) fn leave(&self) {
        STATE.store(LEFT, Ordering::SeqCst);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        drop(self.filled());
        // One that was left stays so.
        let _ = STATE.compare_exchange(TAKEN, FREE, Ordering::SeqCst, Ordering::SeqCst);
    }
}

impl Filled {
    /// Where the records begin, and how many bytes they take.
    pub(super) fn records(&mut self) -> (*mut u8, usize) {
        (self.words.as_mut_ptr().cast(), self.valid)
    }
}

/// Gives CUPTI a buffer.
///
/// # Safety
/// For CUPTI alone: the three places are its own.
pub(super) unsafe extern "C" fn requested(buffer: *mut *mut u8, bytes: *mut usize, records: *mut usize) {
    let words = Box::into_raw(vec![0_u64; WORDS].into_boxed_slice());
    // SAFETY: CUPTI passes three places to write to; the buffer is as long as is said, and aligned to the 8
    // bytes it requests.
    unsafe {
        *buffer = words.cast();
        *bytes = WORDS * size_of::<u64>();
        // As many as fit.
        *records = 0;
    }
}

/// Takes back a buffer that [`requested`] gave.
///
/// # Safety
/// For CUPTI alone: `buffer` is one of those, and comes back once.
pub(super) unsafe extern "C" fn completed(
    _: driver::sys::CUcontext,
    _: u32,
    buffer: *mut u8,
    _: usize,
    valid: usize,
) {
    if buffer.is_null() {
        return;
    }
    // SAFETY: the buffer was made from a box of that many words, which was given away, and is given back once.
    let words = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(buffer.cast::<u64>(), WORDS)) };
    // What comes late is not read.
    if valid > 0 && STATE.load(Ordering::SeqCst) == TAKEN {
        lock(&FILLED).push(Filled { words, valid });
    }
}

const _: sys::CUpti_BuffersCallbackRequestFunc = Some(requested);
const _: sys::CUpti_BuffersCallbackCompleteFunc = Some(completed);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cu3_one_owner_at_a_time_gets_what_comes_back_and_leaves_nothing_to_the_next() {
        let claim = Claim::make().unwrap();
        // Nor is it lost by requesting it.
        assert!(Claim::make().is_none() && Claim::make().is_none());
        let (mut buffer, mut bytes, mut records) = (std::ptr::null_mut(), 0, 9);
        for valid in [0, 48] {
            // SAFETY: in CUPTI's place: what was requested is given back, once.
            unsafe {
                requested(&raw mut buffer, &raw mut bytes, &raw mut records);
                assert!(!buffer.is_null() && buffer.addr().is_multiple_of(8));
                buffer.add(bytes - 1).write(1);
                completed(std::ptr::null_mut(), 0, buffer, bytes, valid);
            }
        }
        assert_eq!((bytes, records), (1 << 19, 0));
        let mut filled = claim.filled();
        assert_eq!(filled.iter_mut().map(|buffer| buffer.records().1).collect::<Vec<_>>(), [48]);
        assert!(claim.filled().is_empty());
        // SAFETY: as above.
        unsafe {
            requested(&raw mut buffer, &raw mut bytes, &raw mut records);
            completed(std::ptr::null_mut(), 0, buffer, bytes, 48);
        }
        drop(claim);
        // SAFETY: as above.
        unsafe {
            requested(&raw mut buffer, &raw mut bytes, &raw mut records);
            completed(std::ptr::null_mut(), 0, buffer, bytes, 48);
        }
        let next = Claim::make().unwrap();
        assert!(next.filled().is_empty());
        // Left on: what comes is not kept, and the right cannot be had any more.
        next.leave();
        // SAFETY: as above.
        unsafe {
            requested(&raw mut buffer, &raw mut bytes, &raw mut records);
            completed(std::ptr::null_mut(), 0, buffer, bytes, 48);
        }
        assert!(next.filled().is_empty());
        drop(next);
        assert!(Claim::make().is_none());
        STATE.store(FREE, Ordering::SeqCst);
    }
}
