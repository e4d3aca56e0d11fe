//! Measurements on which all ranks agree.
//!
//! Law: the median over ranks, so that from three ranks on one late rank decides nothing. Of two the later
//! counts: a step waits for it.

use warpweft_base::median::median;

/// What the ranks agree on: the median over ranks of what the step took, then of what each task took. A rank that
/// could not time its tasks says the step alone, and has no say about tasks; lists of any other length than the
/// longest have none either.
#[must_use]
pub(crate) fn agreed(ranks: &[Vec<u64>]) -> Vec<u64> {
    let length = ranks.iter().map(Vec::len).max().unwrap_or(0);
    let step = median(ranks.iter().filter_map(|times| times.first().copied()).collect());
    let timed: Vec<&Vec<u64>> = ranks.iter().filter(|times| times.len() == length).collect();
    let task = |position: usize| median(timed.iter().map(|times| times[position]).collect());
    step.into_iter().chain((1..length).filter_map(task)).collect()
}
