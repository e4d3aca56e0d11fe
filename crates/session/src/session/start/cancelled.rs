//! Cancelled start-up: a start whose future was dropped.
//!
//! Law: whoever drops the future of a start whose processes have met ends the world, from the opening of
//! devices on, so that no rank of any process waits for one that will not come; else the threads of the ranks,
//! which dropping waits for, would wait for other processes. Until processes meet there is no world to end.

use std::sync::Arc;

use warpweft_backend::rendezvous::Rendezvous;

/// Ends the world when it is dropped, unless the start came to an end of its own.
pub(in crate::session) struct GivenUp(Option<Arc<Rendezvous>>);

impl GivenUp {
    /// Of a start among the ranks of `rendezvous`.
    pub(in crate::session) fn unless_ended(rendezvous: &Arc<Rendezvous>) -> Self {
        Self(Some(Arc::clone(rendezvous)))
    }

    /// The start ended, well or not.
    pub(in crate::session) fn ended(mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(rendezvous) = &self.0 {
            let how = if std::thread::panicking() { "it panicked" } else { "its future was dropped" };
            rendezvous.end(&format!("a session was given up while it started: {how}"));
        }
    }
}
