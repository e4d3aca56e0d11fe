//! A number of a cluster with its origin in words; medians and quartiles, of which numbers are made.
//!
//! Law: a number never travels without the words of how it came about (CL-3).

/// A number and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) how: String,
}

impl Figure {
    pub(super) fn new(value: f64, how: impl Into<String>) -> Self {
        Self { value, how: how.into() }
    }
}

/// Median of an even or odd number of times.
pub(super) fn middle(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let (lower, upper) = (times.get(times.len().checked_sub(1)? / 2)?, times.get(times.len() / 2)?);
    Some((lower + upper) / 2.0)
}

/// Lower quartile: what a task takes when little comes between. On a machine that does other things too, more
/// than half of the times may be those of a task that was preempted.
pub(super) fn lower_quartile(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len().checked_sub(1)? / 4).copied()
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}
