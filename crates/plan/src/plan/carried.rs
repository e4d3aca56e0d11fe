//! The carried buffers of a session, for whoever moves them in or out.
//!
//! Law: carried buffers of one name are one buffer at one place, whichever programs declare it; they
//! are listed by first declaration, program by program, so the list is the same on every rank.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::StepPlan;
use crate::layout::{Content, Region};
use crate::model::Lifetime;
use warpweft_base::id::BufferId;

/// Name and place of every carried buffer of `programs`, which share one resident layout.
#[must_use]
pub fn carried(programs: &[Arc<StepPlan>]) -> Vec<(&str, Region)> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for plan in programs {
        for (number, spec) in plan.buffers.iter().enumerate() {
            if spec.lifetime != Lifetime::Carried || !seen.insert(spec.name.as_str()) {
                continue;
            }
            if let Some(slot) = plan.arena.find(Content::Buffer(BufferId::at(number))) {
                found.push((spec.name.as_str(), plan.arena.region(slot)));
            }
        }
    }
    found
}
