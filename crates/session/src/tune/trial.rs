//! Input and output of a tuner.
//!
//! Law: plain data.

use crate::config::Tune;
use warpweft_plan::plan::GatherStart;

/// The limits of a tuner: steps and memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Most transient bytes per rank; no limit if there is none.
    pub budget: Option<usize>,
    /// Most steps spent on trials, at most 20.
    pub steps: u32,
    /// Steps of one trial; the median of those that are measured counts, of two the faster.
    pub per_trial: u32,
    /// Share by which a trial must be faster than the choice to become it, from 0 to below 1.
    pub hysteresis: f64,
    /// Are plans tried that `auto` makes of measured durations? No configuration says such a plan again, so
    /// whoever wants to write the choice down says no.
    pub by_measurement: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { budget: None, steps: Tune::MOST_STEPS, per_trial: 2, hysteresis: 0.01, by_measurement: true }
    }
}

/// A candidate to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The policy.
    pub prefetch: GatherStart,
    /// Plan with the durations that were measured under the choice, in place of the cost model's.
    pub by_measurement: bool,
    /// Steps of the trial, measured or not: they are spent on it once it ran.
    pub steps: u32,
}

/// The outcome of a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// It ran.
    Measured {
        /// Nanoseconds of each step that was measured, as all ranks agreed on (`agreed.rs`).
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

/// The best candidate so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choice {
    /// What was tried.
    pub candidate: Candidate,
    /// Median of its steps, of two the faster, nanoseconds.
    pub step: u64,
    /// Transient bytes of its plan.
    pub bytes: usize,
}
