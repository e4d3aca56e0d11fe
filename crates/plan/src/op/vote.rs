//! The vote of all ranks on a step, and its verdict.
//!
//! Law: a vote is plain old data whose bytes are the same on the CPU and on a device: fields, order and size are
//! part of every backend's kernels. No byte is padding.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Update, Write};
use warpweft_base::id::SlotId;

/// Sums the records in rank order into clip factor and verdict, and counts the step if it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct CastVote {
    /// All ranks' records.
    pub records: SlotId,
    /// Step count of the optimizer.
    pub optimizer_step: SlotId,
    /// What main grads are a multiple of.
    pub gradient_scale: SlotId,
    /// The vote.
    pub vote: SlotId,
}

impl Operation for CastVote {
    fn name(&self) -> &'static str {
        "vote"
    }

    fn part(&self) -> Part {
        Part::Verdict
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        vec![
            (self.records, Read),
            (self.optimizer_step, Update),
            (self.gradient_scale, Read),
            (self.vote, Write),
        ]
    }

    fn named(&self) -> Vec<Named> {
        Vec::new()
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
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
