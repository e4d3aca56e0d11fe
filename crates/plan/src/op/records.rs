//! What ranks tell each other at the end of a step, and what follows from it.
//!
//! Law: both types are plain old data whose bytes are the same on the CPU and on a device: fields, order and size
//! are part of every backend's kernels. No byte is padding.

use bytemuck::{Pod, Zeroable};

/// What each rank tells the others before the vote. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct NormRecord {
    /// Sum of squares of the rank's main grads. Replicated weights are counted by rank 0 alone, and ranks of
    /// replicas other than the first count nothing. In f64, so that neither small loss scales nor many ranks
    /// cost the norm any precision.
    pub squares: f64,
    /// The rank's fault word: number of the faulted call + 1, or 0.
    pub fault: u32,
    /// Zero; keeps records 16 bytes long.
    pub reserved: u32,
}

/// The verdict over a step, equal on all ranks. 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Vote {
    /// One of [`Vote::CLEAN`], [`Vote::NON_FINITE`], [`Vote::CLOSURE`].
    pub verdict: u32,
    /// Factor on every unscaled gradient: `min(max_norm / (norm + 1e-6), 1)`, or 1 without clipping.
    pub clip: f32,
    /// Global norm of the unscaled gradient.
    pub norm: f32,
    /// Optimizer steps taken, including this one if it is kept.
    pub step: u32,
    /// First rank with a fault, if any.
    pub fault_rank: u32,
    /// That rank's faulted call.
    pub fault_call: u32,
    /// One over the gradient scale: what takes a main grad to the unscaled gradient.
    pub unscale: f32,
    /// Zero; keeps votes 32 bytes long.
    pub reserved: u32,
}

impl Vote {
    /// The step is kept.
    pub const CLEAN: u32 = 0;
    /// A gradient was infinite or not a number, or their norm, after clipping, too large for f32 to hold its
    /// square; the step is skipped.
    pub const NON_FINITE: u32 = 1;
    /// A closure failed; the step is skipped.
    pub const CLOSURE: u32 = 2;

    /// What takes a main grad to the gradient that an optimizer uses: unscaled and clipped.
    #[must_use]
    pub const fn factor(&self) -> f32 {
        self.clip * self.unscale
    }

    /// Whether everything after the vote must leave the weights alone.
    #[must_use]
    pub const fn skips(&self) -> bool {
        self.verdict != Self::CLEAN
    }
}
