//! A start that nobody waits for any more.
//!
//! Law: whoever drops the future of a start ends the world it knows, so that no rank of any process waits for one that
//! will not come; else the threads that open devices, and those of the ranks, for which dropping waits, would wait for
//! other processes. While processes join there is no world yet: then the connections close, or a deadline passes.

use std::sync::Arc;

use crate::rendezvous::Rendezvous;

/// Ends the world when it is dropped, unless the start came to an end of its own.
pub(super) struct GivenUp(Option<Arc<Rendezvous>>);

impl GivenUp {
    /// Of a start among the ranks of `rendezvous`.
    pub(super) fn unless_ended(rendezvous: &Arc<Rendezvous>) -> Self {
        Self(Some(Arc::clone(rendezvous)))
    }

    /// The start ended, well or not.
    pub(super) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(rendezvous) = &self.0 {
            rendezvous.end("a session was given up while it started: its future was dropped");
        }
    }
}
