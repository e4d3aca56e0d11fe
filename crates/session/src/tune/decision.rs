//! The printed decision about a trial.
//!
//! Law: one line a trial, with what decided.

use std::fmt;

use super::trial::Candidate;
use warpweft_plan::policy::ByteSize;

/// A decision: one trial, and its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// What was tried.
    pub candidate: Candidate,
    /// The median of its steps, nanoseconds, if it ran.
    pub step: Option<u64>,
    /// What was made of it.
    pub verdict: Verdict,
}

/// The verdict about a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It is the choice now.
    Chosen {
        /// Transient bytes of its plan.
        bytes: usize,
        /// The step time of the choice before, nanoseconds.
        before: Option<u64>,
    },
    /// The choice stays: this was slower, or not faster by enough.
    Kept {
        /// Transient bytes of its plan.
        bytes: usize,
        /// The step time of the choice, nanoseconds.
        choice: u64,
    },
    /// It needs more memory than there may be.
    OverBudget {
        /// Transient bytes of its plan.
        bytes: usize,
        /// The most there may be.
        budget: usize,
    },
    /// It could not be planned or run.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Why a trial that took `step` is not the choice, which takes `choice`; nanoseconds.
pub(crate) fn why_kept(step: Option<u64>, choice: u64) -> String {
    match step > Some(choice) {
        true => format!("slower than {:.3} ms", choice as f64 / 1e6),
        false => "not faster by enough".to_owned(),
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by_measurement { ", by what was measured" } else { "" };
        write!(formatter, "{}{by}", self.prefetch)
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        let size = |bytes: &usize| ByteSize::of(*bytes).in_full();
        write!(formatter, "{}: ", self.candidate)?;
        if let Some(step) = self.step {
            write!(formatter, "{:.3} ms, ", ms(step))?;
        }
        match &self.verdict {
            Verdict::Chosen { bytes, before: None } => write!(formatter, "{}: the first choice", size(bytes)),
            Verdict::Chosen { bytes, before: Some(before) } => {
                write!(formatter, "{}: chosen over {:.3} ms", size(bytes), ms(*before))
            }
            Verdict::Kept { bytes, choice } => {
                write!(formatter, "{}: {}", size(bytes), why_kept(self.step, *choice))
            }
            Verdict::OverBudget { bytes, budget } => {
                write!(formatter, "{}: more than the budget of {}", size(bytes), size(budget))
            }
            Verdict::Refused { reason } => write!(formatter, "refused: {reason}"),
        }
    }
}
