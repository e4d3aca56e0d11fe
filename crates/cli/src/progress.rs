//! The progress of a conversion, and a way to stop it.

use std::ops::ControlFlow;

/// An observer of a conversion. `()` watches nothing and stops nothing.
pub trait Progress {
    /// The tensors to be read take `bytes`.
    fn start(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// The next tensor is `name`. The name is the file's: it may hold anything.
    fn tensor(&mut self, name: &str) {
        let _ = name;
    }

    /// `bytes` more were read. [`ControlFlow::Break`] ends the work: nothing is left behind, and the result is
    /// [`ToolError::Interrupted`](super::ToolError::Interrupted). It is asked at least once per tensor and MiB.
    fn advance(&mut self, bytes: u64) -> ControlFlow<()> {
        let _ = bytes;
        ControlFlow::Continue(())
    }

    /// All tensors are written.
    fn finish(&mut self) {}
}

impl Progress for () {}
