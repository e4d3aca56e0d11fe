//! Prefetch depth: gathers begin n calls before the one that uses them.
//!
//! Law: what a call uses is due together, so all of it is requested at one stage: that of the n-th call before it
//! that uses sharded weights; the first n at the beginning. Calls that use none count for nothing, for no gather is
//! hidden by waiting for them.

use super::Demand;

pub(super) fn issues(demands: &[Demand<'_>], depth: usize) -> Vec<usize> {
    let mut stages: Vec<usize> = Vec::new();
    let mut issues = Vec::with_capacity(demands.len());
    for demand in demands {
        if stages.last() != Some(&demand.stage) {
            stages.push(demand.stage);
        }
        let number = stages.len() - 1;
        issues.push(number.checked_sub(depth).map_or(0, |earlier| stages[earlier]));
    }
    issues
}
