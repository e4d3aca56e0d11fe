//! The tuner's state machine.
//!
//! Law: TU-1 to TU-4 of this module.

use super::decision::{Decision, Verdict};
use super::trial::{Candidate, Choice, Limits, TrialOutcome};
use crate::config::{ConfigError, Tune};
use warpweft_base::median::lower_median;
use warpweft_plan::plan::GatherStart;

/// The tuner's state machine.
#[derive(Clone, Debug)]
pub struct Tuner {
    limits: Limits,
    configured: GatherStart,
    spent: u32,
    stage: Stage,
    requested: Option<Candidate>,
    /// To be asked once more: it ran, and no step was measured.
    again: Option<Candidate>,
    choice: Option<Choice>,
    log: Vec<Decision>,
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
    ///
    /// # Errors
    /// [`ConfigError::Hysteresis`] for a hysteresis that is no share.
    pub fn new(configured: GatherStart, limits: Limits) -> Result<Self, ConfigError> {
        if !(0.0..1.0).contains(&limits.hysteresis) {
            return Err(ConfigError::Hysteresis { value: limits.hysteresis });
        }
        let limits = Limits {
            steps: limits.steps.min(Tune::MOST_STEPS),
            per_trial: limits.per_trial.max(1),
            ..limits
        };
        Ok(Self {
            limits,
            configured,
            spent: 0,
            stage: Stage::Configured,
            requested: None,
            again: None,
            choice: None,
            log: Vec::new(),
        })
    }

    /// The candidate to try next; `None` once the choice is frozen. Asking again without a report gives the same.
    pub fn next_trial(&mut self) -> Option<Candidate> {
        if self.requested.is_some() {
            return self.requested;
        }
        while self.stage != Stage::Frozen {
            let left = self.limits.steps - self.spent;
            if left < self.limits.per_trial {
                self.stage = Stage::Frozen;
                break;
            }
            if self.again.is_some() {
                self.requested = self.again;
                return self.requested;
            }
            let proposed = self.propose();
            let new =
                proposed.filter(|(prefetch, by_measurement)| !self.was_tried(*prefetch, *by_measurement));
            if let Some((prefetch, by_measurement)) = new {
                self.requested = Some(Candidate { prefetch, by_measurement, steps: self.limits.per_trial });
                return self.requested;
            }
            self.advance(None);
        }
        None
    }

    /// Tells how many transient bytes the plan of the candidate that was requested last needs. `true`: run it
    /// and report. `false`: it is over the budget, or nothing was requested; run nothing and request the
    /// next.
    pub fn planned(&mut self, bytes: usize) -> bool {
        let Some(candidate) = self.requested else { return false };
        let Some(budget) = self.limits.budget.filter(|budget| bytes > *budget) else { return true };
        (self.requested, self.again) = (None, None);
        self.log.push(Decision { candidate, step: None, verdict: Verdict::OverBudget { bytes, budget } });
        self.advance(None);
        false
    }

    /// Tells what came of the candidate that was requested last; without one, nothing changes. One that ran
    /// without a step that was measured is requested once more, as long as there are steps: the first steps
    /// of a run may fail for reasons of their own, such as a loss scale that is still too large.
    pub fn report(&mut self, outcome: TrialOutcome) {
        let Some(candidate) = self.requested.take() else { return };
        let is_first = self.again.take().is_none();
        let (verdict, step) = match outcome {
            TrialOutcome::Refused { reason } => (Verdict::Refused { reason }, None),
            TrialOutcome::Measured { steps, bytes } => {
                self.spent = self.spent.saturating_add(candidate.steps).min(self.limits.steps);
                match lower_median(steps) {
                    None => {
                        self.again = is_first.then_some(candidate);
                        (Verdict::Refused { reason: "no step was measured".into() }, None)
                    }
                    Some(step) => (self.judge(candidate, step, bytes), Some(step)),
                }
            }
        };
        self.log.push(Decision { candidate, step, verdict });
        if self.again.is_none() {
            self.advance(step);
        }
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
        let needed = |choice: &Choice| choice.step as f64 * (1.0 - self.limits.hysteresis);
        if let Some(choice) = before.filter(|choice| step as f64 >= needed(choice)) {
            return Verdict::Kept { bytes, choice: choice.step };
        }
        self.choice = Some(Choice { candidate, step, bytes });
        Verdict::Chosen { bytes, before: before.map(|choice| choice.step) }
    }

    fn was_tried(&self, prefetch: GatherStart, by_measurement: bool) -> bool {
        let same = |decision: &Decision| {
            (decision.candidate.prefetch, decision.candidate.by_measurement) == (prefetch, by_measurement)
        };
        self.stage != Stage::AutoAgain && self.log.iter().any(same)
    }

    fn propose(&self) -> Option<(GatherStart, bool)> {
        let best_bytes = self.choice.and_then(|choice| match choice.candidate.prefetch {
            GatherStart::Bytes(bytes) => Some(bytes),
            GatherStart::Depth(_) | GatherStart::Auto => None,
        });
        match self.stage {
            Stage::Configured => Some((self.configured, false)),
            Stage::Auto => Some((GatherStart::Auto, false)),
            Stage::AutoMeasured => self.measured_auto(),
            Stage::Depth(depth, _) => Some((GatherStart::Depth(depth), false)),
            Stage::HalfBytes => best_bytes.map(|bytes| (GatherStart::Bytes((bytes / 2).max(1)), false)),
            Stage::TwiceBytes => best_bytes.map(|bytes| (GatherStart::Bytes(bytes.saturating_mul(2)), false)),
            Stage::AutoAgain => {
                let changed = self.log.iter().rposition(|d| d.candidate.by_measurement) < self.last_chosen();
                self.measured_auto().filter(|_| changed)
            }
            Stage::Frozen => None,
        }
    }

    /// `auto` by what was measured under the choice.
    fn measured_auto(&self) -> Option<(GatherStart, bool)> {
        self.choice.filter(|_| self.limits.by_measurement).map(|_| (GatherStart::Auto, true))
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
                if pays && depth < GatherStart::MAX_DEPTH {
                    Stage::Depth(depth * 2, took)
                } else {
                    Stage::HalfBytes
                }
            }
            Stage::HalfBytes => Stage::TwiceBytes,
            Stage::TwiceBytes => Stage::AutoAgain,
            Stage::AutoAgain | Stage::Frozen => Stage::Frozen,
        };
    }
}
