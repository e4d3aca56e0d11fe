//! The check that a running call requested what it must overwrite.
//!
//! **EX-4** A closure requests everything that its call declares to overwrite; otherwise the step has failed.
//! A rank runs one call at a time, so marks always belong to the call that is running. They are made when a
//! plan is bound; setting and checking them allocates nothing. That a view was lent does not say that every
//! element was written.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the operand was lent for writing since the call began.
#[derive(Debug, Default)]
pub struct Lent(AtomicBool);

impl Lent {
    /// Begins a run of the call.
    pub(crate) fn begin(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Marks the operand as lent.
    pub(super) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was lent.
    pub(super) fn is_marked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
