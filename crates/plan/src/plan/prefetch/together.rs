//! Demands that one gather serves.
//!
//! Law: demands of one group and one call have one stage, whatever their policy gave each, and along the
//! demands stages still never go back: a demand between two of a group goes with them.

use std::collections::HashMap;

use super::Demand;
use warpweft_base::id::GroupId;

/// Which of its demands' stages a group takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pick {
    /// The first.
    Earliest,
    /// The last, which needs no more bytes in flight.
    Latest,
}

impl Pick {
    fn of(self, one: usize, other: usize) -> usize {
        match self {
            Self::Earliest => one.min(other),
            Self::Latest => one.max(other),
        }
    }
}

/// Lets demands of one group and one call have one stage. `issues` does not go back.
pub(super) fn together(demands: &[Demand<'_>], issues: &mut [usize], pick: Pick) {
    // Every round moves stages one way only, and none beyond those of its own call's demands; without
    // overlapping groups there are two.
    while agree(demands, issues, pick) {
        match pick {
            Pick::Latest => (1..issues.len()).for_each(|at| issues[at] = issues[at].max(issues[at - 1])),
            Pick::Earliest => {
                (1..issues.len()).rev().for_each(|at| issues[at - 1] = issues[at - 1].min(issues[at]));
            }
        }
    }
}

/// Gives every group its stage; `false` if all had it.
fn agree(demands: &[Demand<'_>], issues: &mut [usize], pick: Pick) -> bool {
    let mut stages: HashMap<(usize, GroupId), usize> = HashMap::new();
    for (demand, issue) in demands.iter().zip(&*issues) {
        if let Some(group) = demand.group {
            let stage = stages.entry((demand.stage, group)).or_insert(*issue);
            *stage = pick.of(*stage, *issue);
        }
    }
    let mut changed = false;
    for (demand, issue) in demands.iter().zip(issues) {
        let stage = demand.group.and_then(|group| stages.get(&(demand.stage, group)));
        if let Some(stage) = stage.filter(|stage| **stage != *issue) {
            (*issue, changed) = (*stage, true);
        }
    }
    changed
}
