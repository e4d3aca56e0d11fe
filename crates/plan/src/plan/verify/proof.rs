//! The proof of a verified plan, in numbers.
//!
//! Law: a proof is made by [`verify`](super::verify) alone, from counts of what was checked.

use std::fmt;

use super::contents::Proven;
use crate::plan::StepPlan;
use warpweft_base::id::Version;

/// The counts of an accepted plan. Its text is one paragraph for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Proof {
    /// Tasks of the plan.
    pub tasks: usize,
    /// Fences of the plan (PL-5).
    pub fences: usize,
    /// Pairs of conflicting accesses that were found ordered (PL-3).
    pub conflicts: usize,
    /// Uses that read the declared weight at the declared version (PL-2).
    pub uses: usize,
    /// Gradients that reach their main grad once (PL-4).
    pub gradients: usize,
    /// Buffer accesses that find what program order put there (PL-10).
    pub buffers: usize,
    /// Version of the weights after the step, the entry being version 0 (PL-9).
    pub exit: Version,
    /// Transient bytes alive at the fullest moment (PL-6).
    pub live_bytes: usize,
    /// Transient bytes laid out (PL-6).
    pub transient_bytes: usize,
}

impl Proof {
    pub(super) fn new(plan: &StepPlan, conflicts: usize, proven: Proven, live_bytes: usize) -> Self {
        Self {
            tasks: plan.tasks.len(),
            fences: plan.tasks.iter().map(|task| task.waits.len()).sum(),
            conflicts,
            uses: proven.uses,
            gradients: proven.gradients,
            buffers: proven.buffers,
            exit: plan.exit.masters,
            live_bytes,
            transient_bytes: plan.arena.transient_bytes,
        }
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "proven: {} conflicting accesses of {} tasks are ordered by lanes and {} fences (PL-3, PL-5); \
             {} uses read their weight at its version (PL-2); {} gradients are accumulated once (PL-4); \
             {} buffer accesses find their content (PL-10); the step ends at {} (PL-9); \
             {} of {} transient bytes are live at the fullest moment (PL-6)",
            self.conflicts,
            self.tasks,
            self.fences,
            self.uses,
            self.gradients,
            self.buffers,
            self.exit,
            self.live_bytes,
            self.transient_bytes,
        )
    }
}
