//! Policies that a tuner may try, known before anything is measured.
//!
//! Law: **TU-5** every policy that a tuner of these limits may request, whatever the trials measure, is foreseen, but
//! for what is planned by measured durations: so whoever must make room for trials makes it once, up front.

use super::trial::{Limits, TrialOutcome};
use super::tuner::Tuner;
use crate::config::ConfigError;
use warpweft_plan::plan::GatherStart;

/// The policies that trials can come to from `configured` on, of those that `fits` says can be run. Measured
/// durations and the budget of `limits` are left out of account: `fits` knows what the budget allows.
///
/// # Errors
/// [`ConfigError::Hysteresis`] for a hysteresis that is no share.
pub(crate) fn foreseen(
    configured: GatherStart,
    limits: Limits,
    mut fits: impl FnMut(GatherStart) -> bool,
) -> Result<Vec<GatherStart>, ConfigError> {
    let mut tuner = Tuner::new(configured, Limits { budget: None, by_measurement: false, ..limits })?;
    let mut found = Vec::new();
    // Depths go on for as long as each is faster than the one before; so each is.
    let mut step = u64::MAX >> 1;
    while let Some(candidate) = tuner.next_trial() {
        tuner.report(if fits(candidate.prefetch) {
            found.push(candidate.prefetch);
            step /= 2;
            TrialOutcome::Measured { steps: vec![step], bytes: 0 }
        } else {
            TrialOutcome::Refused { reason: "it does not fit".into() }
        });
    }
    if let GatherStart::Bytes(bytes) = configured {
        let half = (bytes / 2).max(1);
        for bytes in [half, half.saturating_mul(2), bytes.saturating_mul(2)] {
            let prefetch = GatherStart::Bytes(bytes);
            if !found.contains(&prefetch) && fits(prefetch) {
                found.push(prefetch);
            }
        }
    }
    Ok(found)
}
