//! What counts of several measurements.
//!
//! Law: the median, so that one late step or rank decides nothing.

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
