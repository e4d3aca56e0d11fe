//! Keeps alive what captured graphs of a rank may use although its owner gave it back.
//!
//! Laws:
//! - **RH-1** Memory and code of a device that layers of a closure worked with stay until no recording is left
//!   that began after that: a replay runs no closure, so a closure that drops a buffer or a layer (in another
//!   program, in a dynamic call) does not know what still uses it.
//! - What was made, or first used, after the last recording is given back at once: a dynamic call may make and
//!   drop a buffer, or a whole device, in every step.
//! - A device that no layer worked with is unknown here: its buffers are their owner's to keep.
//! - On an abandoned GPU nothing is given back, as everywhere.

use std::any::Any;
use std::sync::{Arc, Mutex};

use crate::device::context::Context;
use warpweft_backend::bell::lock;

/// Things, whatever they are.
type Thing = Arc<dyn Any + Send + Sync>;

/// What is held for the recordings of one rank.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Recordings begun so far.
    begun: u64,
    /// Is the last of them still being made?
    is_recording: bool,
    /// The number of them that are left.
    left: usize,
    held: Vec<Thing>,
}

/// One recording, for as long as it may be replayed.
#[derive(Debug)]
pub(crate) struct Recording(Arc<KeepAlive>);

impl KeepAlive {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, state: Mutex::default() }
    }

    /// A recording begins.
    pub(crate) fn begin(self: &Arc<Self>) -> Recording {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.left += 1;
        state.is_recording = true;
        Recording(Arc::clone(self))
    }

    /// Nothing more is recorded.
    pub(crate) fn end(&self) {
        lock(&self.state).is_recording = false;
    }

    /// How many recordings cannot use what is made, or first used, now.
    pub(crate) fn too_early(&self) -> u64 {
        let state = lock(&self.state);
        state.begun - u64::from(state.is_recording)
    }

    /// Holds what its owner drops, if a recording is left and one may use it that began after the first
    /// `too_early` of them.
    pub(crate) fn outlive(&self, thing: &Thing, too_early: u64) {
        let mut state = lock(&self.state);
        if state.left > 0 && too_early < state.begun {
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
