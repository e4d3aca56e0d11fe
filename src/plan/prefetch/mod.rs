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
//! A demand whose planes are still there is not gathered again: see the gather pass.

mod auto;
mod bytes;
mod deadline;
mod demands;
mod depth;

use serde::Serialize;

use super::PlanError;
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

/// When everything on the communicators is issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timetable {
    /// Per demand: the stage at which it is asked for.
    pub(super) issues: Vec<usize>,
    /// How many calls behind its own a gradient's reduction stands in T; its accumulation stands one further.
    pub(super) reduce_behind: usize,
}

impl Timetable {
    /// Reductions stand one call behind: the first place in which they hold no gather up.
    pub(super) const REDUCE_BEHIND: usize = 1;

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
        Ok(Self { issues, reduce_behind: Self::REDUCE_BEHIND })
    }
}
