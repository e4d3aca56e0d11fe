//! Keeps alive what captured graphs of a rank may use although its owner gave it back.
//!
//! Laws:
//! - **RH-1** Memory and code of a device that layers of a closure worked with stay until no capture is left
//!   that began after that: a replay runs no closure, so a closure that drops a buffer or a layer (in another
//!   program, in a dynamic call) does not know what still uses it.
//! - What was made, or first used, after the last capture is given back at once: a dynamic call may make and
//!   drop a buffer, or a whole device, in every step.
//! - A device that no layer worked with is unknown here: its buffers are their owner's to keep.
//! - On an abandoned GPU nothing is given back, as everywhere.

use std::any::Any;
use std::sync::{Arc, Mutex};

use crate::device::context::Context;
use warpweft_backend::bell::lock;

/// Things, whatever they are.
type Thing = Arc<dyn Any + Send + Sync>;

/// What is held for the captures of one rank.
#[derive(Debug)]
pub(crate) struct KeepAlive {
    context: Arc<Context>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Captures begun so far.
    begun: u64,
    /// Is the last of them still being made?
    is_capturing: bool,
    /// The number of them that are left.
    left: usize,
    held: Vec<Thing>,
}

/// One capture, for as long as it may be replayed.
#[derive(Debug)]
pub(crate) struct CapturedGraph(Arc<KeepAlive>);

impl KeepAlive {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, state: Mutex::default() }
    }

    /// A capture begins.
    pub(crate) fn begin(self: &Arc<Self>) -> CapturedGraph {
        let mut state = lock(&self.state);
        state.begun += 1;
        state.left += 1;
        state.is_capturing = true;
        CapturedGraph(Arc::clone(self))
    }

    /// Nothing more is captured.
    pub(crate) fn end(&self) {
        lock(&self.state).is_capturing = false;
    }

    /// How many captures cannot use what is made, or first used, now.
    pub(crate) fn too_early(&self) -> u64 {
        let state = lock(&self.state);
        state.begun - u64::from(state.is_capturing)
    }

    /// Holds what its owner drops, if a capture is left and one may use it that began after the first
    /// `too_early` of them.
    pub(crate) fn outlive(&self, thing: &Thing, too_early: u64) {
        let mut state = lock(&self.state);
        if state.left > 0 && too_early < state.begun {
            state.held.push(Arc::clone(thing));
        }
    }
}

impl Drop for CapturedGraph {
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
