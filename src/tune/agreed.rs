//! What ranks agree on.
//!
//! Law: the median over ranks, so that from three ranks on one late rank decides nothing. Of two the later counts: a step waits for it.

use crate::trace::median;

/// What the ranks agree on: for each step or task, the median over ranks of what they measured. Lists shorter than the first are left out;
/// a session refuses them before it asks.
#[must_use]
pub fn agreed(ranks: &[Vec<u64>]) -> Vec<u64> {
    let length = ranks.first().map_or(0, Vec::len);
    let complete: Vec<&Vec<u64>> = ranks.iter().filter(|times| times.len() >= length).collect();
    let at = |position: usize| median(complete.iter().map(|times| times[position]).collect());
    (0..length).filter_map(at).collect()
}
