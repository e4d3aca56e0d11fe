//! Which prefetch policy is fastest, by measurement.
//!
//! Laws:
//! - **TU-1** a [`Tuner`] is a state machine: it says what to try next and is told what came of it. It plans nothing, runs nothing and
//!   reads no clock, so it serves a simulator and a real session alike, and equal answers give equal decisions on every rank.
//! - **TU-2** a trial that needs more memory than the budget never becomes the choice.
//! - **TU-3** at most [`Limits::steps`] steps are spent on trials; then the choice is frozen.
//! - **TU-4** the choice changes only for a trial that was measured faster by more than [`Limits::hysteresis`]: two that differ by noise do
//!   not take turns.
//!
//! The order of trials: what is configured; `auto` by the cost model; `auto` by what was measured; depths 1, 2, 4, … as long as they pay; half
//! and twice the bytes of the best, if it goes by bytes; `auto` once more, by what was measured under the choice.

mod decision;

pub use decision::{Decision, Verdict};

use crate::plan::Prefetch;

/// What a tuner may spend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most transient bytes per rank; no limit if there is none.
    pub budget: Option<usize>,
    /// Most steps spent on trials, at most 20.
    pub steps: u32,
    /// Steps of one trial, of which the median counts.
    pub per_trial: u32,
    /// Share by which a trial must be faster than the choice to become it.
    pub hysteresis: f64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { budget: None, steps: MOST_STEPS, per_trial: 2, hysteresis: 0.01 }
    }
}

/// The most steps that [`Limits::steps`] can ask for.
pub const MOST_STEPS: u32 = 20;

/// Deepest depth that is tried.
const DEEPEST: u32 = 64;

/// What to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The policy.
    pub prefetch: Prefetch,
    /// Plan with the durations that were measured under the choice, in place of the cost model's.
    pub by_measurement: bool,
    /// Steps to measure.
    pub steps: u32,
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It ran.
    Measured {
        /// Nanoseconds of each step, as all ranks agreed on ([`agreed`]).
        steps: Vec<u64>,
        /// Transient bytes of the plan, per rank.
        bytes: usize,
    },
    /// It could not be planned or run.
    Refused {
        /// Why.
        reason: String,
    },
}

/// The state machine.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: Limits,
    configured: Prefetch,
    spent: u32,
    stage: Stage,
    asked: Option<Candidate>,
    choice: Option<Choice>,
    log: Vec<Decision>,
}

/// The best so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What was tried.
    pub candidate: Candidate,
    /// Median of its steps, nanoseconds.
    pub step: u64,
    /// Transient bytes of its plan.
    pub bytes: usize,
}

/// What is tried next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Configured,
    Auto,
    AutoMeasured,
    /// A depth, and what the one before it took.
    Depth(u32, u64),
    HalfBytes,
    TwiceBytes,
    AutoAgain,
    Frozen,
}

impl Tuner {
    /// A tuner that begins with the configured policy.
    #[must_use]
    pub fn new(configured: Prefetch, limits: Limits) -> Self {
        let limits =
            Limits { steps: limits.steps.min(MOST_STEPS), per_trial: limits.per_trial.max(1), ..limits };
        Self {
            limits,
            configured,
            spent: 0,
            stage: Stage::Configured,
            asked: None,
            choice: None,
            log: Vec::new(),
        }
    }

    /// What to try next; `None` once the choice is frozen. Asking again without a report gives the same.
    pub fn next_trial(&mut self) -> Option<Candidate> {
        if self.asked.is_some() {
            return self.asked;
        }
        while self.stage != Stage::Frozen {
            let left = self.limits.steps - self.spent;
            if left < self.limits.per_trial {
                self.stage = Stage::Frozen;
                break;
            }
            let proposed = self.propose();
            let new =
                proposed.filter(|(prefetch, by_measurement)| !self.was_tried(*prefetch, *by_measurement));
            if let Some((prefetch, by_measurement)) = new {
                self.asked = Some(Candidate { prefetch, by_measurement, steps: self.limits.per_trial });
                return self.asked;
            }
            self.advance(None);
        }
        None
    }

    /// Tells what came of the candidate that was asked for last; without one, nothing changes.
    pub fn report(&mut self, outcome: Outcome) {
        let Some(candidate) = self.asked.take() else { return };
        let (verdict, step) = match outcome {
            Outcome::Refused { reason } => (Verdict::Refused { reason }, None),
            Outcome::Measured { steps, bytes } => {
                self.spent = self.spent.saturating_add(u32::try_from(steps.len()).unwrap_or(u32::MAX));
                self.spent = self.spent.min(self.limits.steps);
                match median(steps) {
                    None => (Verdict::Refused { reason: "no step was measured".into() }, None),
                    Some(step) => (self.judge(candidate, step, bytes), Some(step)),
                }
            }
        };
        self.log.push(Decision { candidate, step, verdict });
        self.advance(step);
    }

    /// The best so far, if any trial ran within the budget.
    #[must_use]
    pub const fn choice(&self) -> Option<Choice> {
        self.choice
    }

    /// Every trial with what was made of it, in order.
    #[must_use]
    pub fn log(&self) -> &[Decision] {
        &self.log
    }

    fn judge(&mut self, candidate: Candidate, step: u64, bytes: usize) -> Verdict {
        if let Some(budget) = self.limits.budget.filter(|budget| bytes > *budget) {
            return Verdict::OverBudget { bytes, budget };
        }
        let before = self.choice;
        let needed = before.map(|choice| choice.step as f64 * (1.0 - self.limits.hysteresis));
        if needed.is_some_and(|needed| step as f64 >= needed) {
            return Verdict::Kept { bytes };
        }
        self.choice = Some(Choice { candidate, step, bytes });
        Verdict::Chosen { bytes, before: before.map(|choice| choice.step) }
    }

    fn was_tried(&self, prefetch: Prefetch, by_measurement: bool) -> bool {
        let same = |decision: &Decision| {
            (decision.candidate.prefetch, decision.candidate.by_measurement) == (prefetch, by_measurement)
        };
        self.stage != Stage::AutoAgain && self.log.iter().any(same)
    }

    fn propose(&self) -> Option<(Prefetch, bool)> {
        let best_bytes = self.choice.and_then(|choice| match choice.candidate.prefetch {
            Prefetch::Bytes(bytes) => Some(bytes),
            Prefetch::Depth(_) | Prefetch::Auto => None,
        });
        match self.stage {
            Stage::Configured => Some((self.configured, false)),
            Stage::Auto => Some((Prefetch::Auto, false)),
            Stage::AutoMeasured => self.choice.map(|_| (Prefetch::Auto, true)),
            Stage::Depth(depth, _) => Some((Prefetch::Depth(depth), false)),
            Stage::HalfBytes => best_bytes.map(|bytes| (Prefetch::Bytes((bytes / 2).max(1)), false)),
            Stage::TwiceBytes => best_bytes.map(|bytes| (Prefetch::Bytes(bytes.saturating_mul(2)), false)),
            Stage::AutoAgain => {
                let changed = self.log.iter().rposition(|d| d.candidate.by_measurement) < self.last_chosen();
                (changed && self.choice.is_some()).then_some((Prefetch::Auto, true))
            }
            Stage::Frozen => None,
        }
    }

    /// The trial that became the choice last.
    fn last_chosen(&self) -> Option<usize> {
        self.log.iter().rposition(|decision| matches!(decision.verdict, Verdict::Chosen { .. }))
    }

    fn advance(&mut self, step: Option<u64>) {
        self.stage = match self.stage {
            Stage::Configured => Stage::Auto,
            Stage::Auto => Stage::AutoMeasured,
            Stage::AutoMeasured => Stage::Depth(1, u64::MAX),
            Stage::Depth(depth, before) => {
                // What was tried before, or refused, says nothing about the next depth.
                let took = step.unwrap_or(before);
                let pays = took < before || step.is_none();
                if pays && depth < DEEPEST { Stage::Depth(depth * 2, took) } else { Stage::HalfBytes }
            }
            Stage::HalfBytes => Stage::TwiceBytes,
            Stage::TwiceBytes => Stage::AutoAgain,
            Stage::AutoAgain | Stage::Frozen => Stage::Frozen,
        };
    }
}

/// The median of some times, the earlier of the two in the middle of an even number; `None` of none.
#[must_use]
pub fn median(mut times: Vec<u64>) -> Option<u64> {
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied()
}

/// What the ranks agree on: for each step or task, the median over ranks of what they measured. Lists shorter than the first are left out.
#[must_use]
pub fn agreed(ranks: &[Vec<u64>]) -> Vec<u64> {
    let length = ranks.first().map_or(0, Vec::len);
    let complete: Vec<&Vec<u64>> = ranks.iter().filter(|times| times.len() >= length).collect();
    let at = |position: usize| median(complete.iter().map(|times| times[position]).collect());
    (0..length).filter_map(at).collect()
}

#[cfg(test)]
mod tests;
