//! What recordings of a rank may use although its owner gave it back.
//!
//! Laws:
//! - **RH-1** Memory and code that a closure's layers used stay until no recording is left that began while
//!   they were there: a replay runs no closure, so a closure that drops a buffer or a layer (in another
//!   program, in a dynamic call) does not know what still uses it.
//! - What was made after the last recording is given back at once: a dynamic call may make and drop a buffer
//!   in every step.
//! - On an abandoned GPU nothing is given back, as everywhere.

use std::any::Any;
use std::sync::{Arc, Mutex};

use super::context::Context;
use crate::backend::bell::lock;

/// Things, whatever they are.
type Thing = Arc<dyn Any + Send + Sync>;

/// What is held for the recordings of one rank.
#[derive(Debug)]
pub(super) struct Holdings {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Recordings begun so far.
    begun: u64,
    /// The number of them that are left.
    left: usize,
    held: Vec<Thing>,
}

/// One recording, for as long as it may be replayed.
#[derive(Debug)]
pub(super) struct Recording(Arc<Holdings>);

impl Holdings {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self { context, state: Mutex::default() }
    }

    /// A recording begins.
    pub(super) fn begin(self: &Arc<Self>) -> Recording {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.left += 1;
        Recording(Arc::clone(self))
    }

    /// How many recordings have begun.
    pub(super) fn begun(&self) -> u64 {
        lock(&self.state).begun
    }

    /// Holds what its owner drops, if there is a recording that may use it: one that began after the first
    /// `made` recordings. `made` is unknown for what is older than its first use.
    pub(super) fn outlive(&self, thing: &Thing, made: Option<u64>) {
        let mut state = lock(&self.state);
        if state.left > 0 && made != Some(state.begun) {
            state.held.push(Arc::clone(thing));
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let held = {
            let mut state = lock(&self.0.state);
            state.left -= 1;
            if state.left > 0 { Vec::new() } else { std::mem::take(&mut state.held) }
        };
        if self.0.context.is_abandoned() {
            std::mem::forget(held);
        }
    }
}
