//! When everything on the communicators is issued.
//!
//! Law: a timetable has one stage for every demand, no later than the demand's own; whoever makes one looks at nothing else.

use super::together::{Pick, together};
use super::{Demand, Prefetch, bytes, depth};
use crate::plan::PlanError;

/// When everything on the communicators is issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Timetable {
    /// Per demand: the stage at which it is asked for.
    pub(in super::super) issues: Vec<usize>,
    /// Per demand: are planes that are there from an earlier use kept for it, although nobody asked for that?
    pub(in super::super) kept: Vec<bool>,
    /// How many calls behind its own a gradient's reduction stands in T; its accumulation stands one further.
    pub(in super::super) reduce_behind: usize,
}

impl Timetable {
    /// A timetable made by hand: one stage for every demand.
    pub(in super::super) fn by_hand(
        demands: &[Demand<'_>],
        mut issues: Vec<usize>,
        reduce_behind: usize,
    ) -> Self {
        together(demands, &mut issues, Pick::Latest);
        Self { reduce_behind, ..Self::as_issued(issues) }
    }

    /// Reductions stand two calls behind, where they hold no gather up and a third gradient may be written meanwhile.
    pub(in super::super) const REDUCE_BEHIND: usize = 2;

    /// Gathers issued at these stages, nothing kept, reductions two calls behind.
    pub(in super::super) fn as_issued(issues: Vec<usize>) -> Self {
        Self { kept: vec![false; issues.len()], issues, reduce_behind: Self::REDUCE_BEHIND }
    }

    /// The timetable of a policy that needs no durations.
    ///
    /// # Errors
    /// [`PlanError::Prefetch`]; [`PlanError::Policy`] for one that needs them.
    pub(in super::super) fn of(
        prefetch: Prefetch,
        reduce_behind: usize,
        demands: &[Demand<'_>],
    ) -> Result<Self, PlanError> {
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
        Ok(Self { reduce_behind, ..Self::as_issued(issues) })
    }
}
