//! Tuning: finds the fastest prefetch policy by measurement.
//!
//! Laws:
//! - **TU-1** a `Tuner` is a state machine: it says what to try next and gets what came of it. It plans
//!   nothing, runs nothing and reads no clock, so it serves a simulator and a real session alike, and equal
//!   answers give equal decisions on every rank.
//! - **TU-2** a plan that needs more memory than the budget is not run, once its bytes are known
//!   (`Tuner::planned`), and never becomes the choice.
//! - **TU-3** at most `Limits::steps` steps are spent on trials; then the choice is frozen.
//! - **TU-4** the choice changes only for a trial that was measured faster by more than
//!   `Limits::hysteresis`: two that differ by noise do not take turns.
//! - **TU-5** what it can request is known before anything is measured, but for what is planned by measured
//!   durations (`foreseen`).
//!
//! The order of trials: what is configured; `auto` by the cost model; `auto` by what was measured, if
//! `Limits::by_measurement` says so; depths 1, 2, 4, … as long as they pay; half and twice the bytes of the
//! best, if it goes by bytes; `auto` once more, by what was measured under the choice.

mod agreed;
mod decision;
mod foreseen;
mod trial;
mod tuner;

pub(crate) use agreed::agreed;
pub(crate) use decision::why_kept;
pub use decision::{Decision, Verdict};
pub(crate) use foreseen::foreseen;
pub use trial::{Candidate, Choice};
#[doc(hidden)]
pub use trial::{Limits, TrialOutcome};
#[doc(hidden)]
pub use tuner::Tuner;

#[cfg(test)]
mod tests;
