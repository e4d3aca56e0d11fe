//! One trial of a plan: the steps it has left, and the times of those it had.
//!
//! Law: a trial ends with its last step, whatever came of its steps (TU-9).

use std::sync::Arc;

use crate::tune::Candidate;
use warpweft_base::median::lower_median;
use warpweft_plan::plan::StepPlan;

/// A trial under way.
#[derive(Debug)]
pub(super) struct Trial {
    candidate: Candidate,
    plan: Arc<StepPlan>,
    ran: u32,
    /// Was a step of it through, on all ranks and without a fault? Those before are slower.
    is_warm: bool,
    /// Of every step that was measured: the step, then its tasks.
    times: Vec<Vec<u64>>,
}

impl Trial {
    pub(super) const fn new(candidate: Candidate, plan: Arc<StepPlan>) -> Self {
        Self { candidate, plan, ran: 0, is_warm: false, times: Vec::new() }
    }

    pub(super) const fn candidate(&self) -> Candidate {
        self.candidate
    }

    pub(super) const fn plan(&self) -> &Arc<StepPlan> {
        &self.plan
    }

    /// Counts a step in which a closure failed or none, with what it took, if that was measured; was it the last?
    pub(super) fn count(&mut self, failed: bool, times: Option<&[u64]>) -> bool {
        self.times.extend(times.filter(|_| self.is_warm).map(<[u64]>::to_vec));
        self.is_warm |= !failed;
        self.ran += 1;
        self.ran >= self.candidate.steps
    }

    /// What every step took, and the medians of its tasks, of two the faster: none where tasks were not timed.
    pub(super) fn measured(&self) -> (Vec<u64>, Vec<u64>) {
        let at = |position: usize| self.times.iter().filter_map(move |times| times.get(position).copied());
        let tasks = (1..=self.plan.tasks.len()).filter_map(|position| lower_median(at(position).collect()));
        (at(0).collect(), tasks.collect())
    }
}
