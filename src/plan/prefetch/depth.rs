//! So many uses ahead.
//!
//! Law: use i is asked for at the stage of use i−n; the first n at the beginning. Uses of one group by one
//! call count as one.

use std::collections::HashMap;

use super::Demand;
use crate::id::GroupId;

pub(super) fn issues(demands: &[Demand<'_>], depth: usize) -> Vec<usize> {
    // The stage of every use, a group's counted once, and which of them each demand belongs to.
    let mut stages: Vec<usize> = Vec::new();
    let mut groups: HashMap<(usize, GroupId), usize> = HashMap::new();
    let mut numbers = Vec::with_capacity(demands.len());
    for demand in demands {
        let next = stages.len();
        let number = match demand.group {
            Some(group) => *groups.entry((demand.stage, group)).or_insert(next),
            None => next,
        };
        if number == next {
            stages.push(demand.stage);
        }
        numbers.push(number);
    }
    let ahead = |number: usize| number.checked_sub(depth).map_or(0, |earlier| stages[earlier]);
    numbers.into_iter().map(ahead).collect()
}
