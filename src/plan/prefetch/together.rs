//! Demands that one gather serves.
//!
//! Law: demands of one group and one call have one stage, whatever their policy gave each.

use std::collections::HashMap;

use super::Demand;
use crate::id::GroupId;

/// Lets demands of one group and one call have one stage, which `pick` takes of two.
pub(super) fn together(demands: &[Demand<'_>], issues: &mut [usize], pick: fn(usize, usize) -> usize) {
    let mut stages: HashMap<(usize, GroupId), usize> = HashMap::new();
    for (demand, issue) in demands.iter().zip(&*issues) {
        if let Some(group) = demand.group {
            let stage = stages.entry((demand.stage, group)).or_insert(*issue);
            *stage = pick(*stage, *issue);
        }
    }
    for (demand, issue) in demands.iter().zip(issues) {
        let stage = demand.group.and_then(|group| stages.get(&(demand.stage, group)));
        *issue = stage.copied().unwrap_or(*issue);
    }
}
