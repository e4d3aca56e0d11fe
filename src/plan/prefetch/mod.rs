//! When gathers and reductions are issued.
//!
//! Law: `demands` says *which* planes the program needs, from program order alone; a policy says *at which stage* each
//! is asked for, and nothing else; [`crate::plan`]'s gather pass makes tasks of both. A stage is a call: what is issued at stage s may begin once
//! call s−1 has ended. Along the demands, in order of need, stages never go back, so a communicator serves who needs
//! first (deadline order).
//!
//! | file | idea |
//! |---|---|
//! | `demands` | the planes each use needs |
//! | `depth` | n uses ahead |
//! | `bytes` | as early as a number of gathered bytes in flight allows |
//! | `deadline` | as late as is safe, by what everything takes |
//! | `auto` | the best of these within the budget, by what they are expected to take |
//!
//! Demands of one group and one call are asked for together: by time at the earliest of their stages, by bytes and by hand
//! at the latest, when there is room for all. A demand whose planes are still there is not gathered again: see the gather pass.

mod auto;
mod bytes;
mod deadline;
mod demands;
mod depth;

use std::collections::HashMap;

use serde::Serialize;

use super::PlanError;
use crate::id::GroupId;
pub(super) use auto::{Trial, search};
pub(super) use deadline::Pace;
pub(super) use demands::{Demand, demands};

/// When a gather may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Prefetch {
    /// So many uses ahead of its own; 0 is on demand.
    Depth(u32),
    /// As early as so many bytes of gathered planes in flight allow.
    Bytes(usize),
    /// Each as late as is safe, by what tasks are said to take ([`super::Costs`]), within the budget.
    Auto,
}

impl Prefetch {
    /// Is every gather made where it is used, in front of a waiting call?
    pub(super) const fn is_on_demand(self) -> bool {
        matches!(self, Self::Depth(0))
    }
}

impl std::fmt::Display for Prefetch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Depth(depth) => write!(formatter, "prefetch.depth = {depth}"),
            Self::Bytes(bytes) => write!(formatter, "prefetch.bytes = {bytes}"),
            Self::Auto => formatter.write_str("prefetch.policy = \"auto\""),
        }
    }
}

/// Lets demands of one group and one call have one stage, which `pick` takes of two.
fn together(demands: &[Demand<'_>], issues: &mut [usize], pick: fn(usize, usize) -> usize) {
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

/// When everything on the communicators is issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timetable {
    /// Per demand: the stage at which it is asked for.
    pub(super) issues: Vec<usize>,
    /// Per demand: are planes that are there from an earlier use kept for it, although nobody asked for that?
    pub(super) kept: Vec<bool>,
    /// How many calls behind its own a gradient's reduction stands in T; its accumulation stands one further.
    pub(super) reduce_behind: usize,
}

impl Timetable {
    /// A timetable made by hand: one stage for every demand.
    pub(super) fn by_hand(demands: &[Demand<'_>], mut issues: Vec<usize>) -> Self {
        together(demands, &mut issues, usize::max);
        Self::as_issued(issues)
    }

    /// Reductions stand one call behind: the first place in which they hold no gather up.
    pub(super) const REDUCE_BEHIND: usize = 2;

    /// Gathers issued at these stages, nothing kept, reductions where they always are.
    pub(super) fn as_issued(issues: Vec<usize>) -> Self {
        Self { kept: vec![false; issues.len()], issues, reduce_behind: Self::REDUCE_BEHIND }
    }

    /// The timetable of a policy that needs no durations.
    ///
    /// # Errors
    /// [`PlanError::Prefetch`]; [`PlanError::Policy`] for one that needs them.
    pub(super) fn of(prefetch: Prefetch, demands: &[Demand<'_>]) -> Result<Self, PlanError> {
        let issues = match prefetch {
            Prefetch::Depth(depth) => depth::issues(demands, depth as usize),
            Prefetch::Bytes(limit) => bytes::issues(demands, limit)?,
            Prefetch::Auto => {
                return Err(PlanError::Policy {
                    key: "prefetch.policy",
                    value: "\"auto\"".into(),
                    advice: "give the planner costs to count with (StepPlan::timed), or set prefetch.depth",
                });
            }
        };
        Ok(Self::as_issued(issues))
    }
}
