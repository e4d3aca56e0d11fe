//! A lock on the GPUs, for tests.
//!
//! Law: one test at a time. While one captures a step, CUDA forbids everybody in the process to wait for that
//! device. A test that cannot run says so on stderr, past the harness, which keeps the output of tests that
//! pass.

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::cuda::gpus;
use super::cuda::library::Gpus;

/// Held by the test that uses the GPUs.
pub(crate) type Turn = MutexGuard<'static, ()>;

/// The GPUs, once no other test uses them. `None` where there are none.
pub(crate) fn turn(test: &str) -> Option<(Gpus, Turn)> {
    static GPUS: Mutex<()> = Mutex::new(());
    match gpus() {
        Ok(found) if found.count() > 0 => {
            // A test that failed leaves nothing the next one depends on.
            Some((found, GPUS.lock().unwrap_or_else(PoisonError::into_inner)))
        }
        Ok(_) => {
            skip(test, &"this machine shows no GPU");
            None
        }
        Err(failure) => {
            skip(test, &failure);
            None
        }
    }
}

/// Says that a test was skipped.
pub(crate) fn skip(test: &str, reason: &dyn std::fmt::Display) {
    let line = format!("skipped: {test}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
