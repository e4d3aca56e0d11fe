//! When everything on the communicators is issued.
//!
//! Law: a timetable has one stage for every demand, no later than the demand's own; whoever makes one looks
//! at nothing else.

use super::together::{Pick, together};
use super::{Demand, GatherStart, bytes, depth};
use crate::plan::PlanError;

/// When gradients are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Reductions {
    /// How many calls behind its own a gradient's reduction stands in T; its accumulation stands one further.
    pub(in super::super) behind: usize,
    /// May an exchange stand before the call behind the gradient's own, not behind that call? It then waits
    /// for no memory that this call leaves, and what lands takes memory of its own.
    pub(in super::super) early: bool,
}

impl Reductions {
    /// Two calls behind reductions hold no gather up, and a third gradient may be written meanwhile.
    pub(in super::super) const TWO_BEHIND: Self = Self { behind: 2, early: false };

    /// `behind` calls behind; with a call to spare exchanges are early.
    pub(in super::super) const fn standing(behind: usize) -> Self {
        Self { behind, early: behind > Self::TWO_BEHIND.behind }
    }

    /// All that stand `behind` calls behind: with exchanges late, and early where there is a call to spare.
    pub(in super::super) fn all(behind: usize) -> impl Iterator<Item = Self> {
        let late = Self { behind, early: false };
        let early = Some(Self::standing(behind)).filter(|standing| standing.early);
        std::iter::once(late).chain(early)
    }
}

/// When everything on the communicators is issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Timetable {
    /// Per demand: the stage at which it is asked for.
    pub(in super::super) issues: Vec<usize>,
    /// Per demand: are planes that are there from an earlier use kept for it, although nobody asked for that?
    pub(in super::super) kept: Vec<bool>,
    /// When gradients are reduced.
    pub(in super::super) reductions: Reductions,
}

impl Timetable {
    /// A timetable made by hand: one stage for every demand.
    pub(in super::super) fn by_hand(
        demands: &[Demand<'_>],
        mut issues: Vec<usize>,
        reduce_behind: usize,
    ) -> Self {
        together(demands, &mut issues, Pick::Latest);
        Self { reductions: Reductions::standing(reduce_behind), ..Self::as_issued(issues) }
    }

    /// Gathers issued at these stages, nothing kept, reductions two calls behind.
    pub(in super::super) fn as_issued(issues: Vec<usize>) -> Self {
        Self { kept: vec![false; issues.len()], issues, reductions: Reductions::TWO_BEHIND }
    }

    /// The timetable of a policy that needs no durations.
    ///
    /// # Errors
    /// [`PlanError::Prefetch`]; [`PlanError::Policy`] for one that needs them.
    pub(in super::super) fn of(
        prefetch: GatherStart,
        reduce_behind: usize,
        demands: &[Demand<'_>],
    ) -> Result<Self, PlanError> {
        let issues = match prefetch {
            GatherStart::Depth(depth) => depth::issues(demands, depth as usize),
            GatherStart::Bytes(limit) => bytes::issues(demands, limit)?,
            GatherStart::Auto => {
                return Err(PlanError::Policy {
                    key: "prefetch.policy",
                    value: "\"auto\"".into(),
                    advice: "give the planner costs to count with (StepPlan::timed), or set prefetch.depth",
                });
            }
        };
        Ok(Self { reductions: Reductions::standing(reduce_behind), ..Self::as_issued(issues) })
    }
}
