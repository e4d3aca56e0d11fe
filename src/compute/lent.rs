//! Whether a running call asked for what it must overwrite.
//!
//! **EX-4** What a call overwrites is asked for, or its step has failed. A rank runs one call at a time, so a
//! mark is of the call that runs. Marks are made when a plan is bound; setting and asking allocates nothing.
//! That a view was lent does not say that every element was written.

use std::sync::atomic::{AtomicBool, Ordering};

/// Was the operand lent for writing since the call began?
#[derive(Debug, Default)]
pub(super) struct Lent(AtomicBool);

impl Lent {
    /// A run of the call begins.
    pub(super) fn begin(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// The operand is lent.
    pub(super) fn mark(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Was it?
    pub(super) fn is_marked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
