//! A rank's part of a save that a thread writes.
//!
//! Law: the thread says once what became of it. A rank asks between two signs of life, so that others wait on for a
//! disk that is slow.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::checkpoint::CheckpointError;

/// How often a rank that waits for the thread gives a sign of life, at least.
const EVERY: Duration = Duration::from_millis(50);

/// What the thread says: a number by which the part is known again, or why there is none.
#[derive(Debug, Default)]
pub struct WrittenPart {
    ended: Mutex<Option<Result<u64, CheckpointError>>>,
    bell: Condvar,
}

impl WrittenPart {
    /// The part is written, or is not.
    pub fn end(&self, ended: Result<u64, CheckpointError>) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        self.bell.notify_all();
    }

    /// Waits until the thread has said so.
    ///
    /// # Errors
    /// That of `alive`, which is called meanwhile.
    pub(super) fn wait<E>(
        &self,
        alive: impl Fn() -> Result<(), E>,
    ) -> Result<Result<u64, CheckpointError>, E> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(said) = ended.take() {
                return Ok(said);
            }
            drop(ended);
            alive()?;
            let locked = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended = self.bell.wait_timeout(locked, EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
