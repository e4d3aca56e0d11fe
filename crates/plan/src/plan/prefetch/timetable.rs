//! The timetable: when everything on the communicators is issued.
//!
//! Law: a timetable has one stage for every demand, no later than the demand's own; whoever makes one looks
//! at nothing else.

use super::together::{Pick, together};
use super::{Demand, GatherStart, bytes, depth};
use crate::plan::PlanError;

/// When gradients are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Reductions {
    /// How many calls after its own a gradient's reduction stands in T; its accumulation stands one further.
    pub(in super::super) delay: usize,
    /// May an exchange stand before the call after the gradient's own, not after that call? It then waits
    /// for no memory that this call leaves, and what lands takes memory of its own.
    pub(in super::super) early: bool,
}

impl Reductions {
    /// Two calls later, reductions hold no gather up, and a third gradient may be written meanwhile.
    pub(in super::super) const TWO_CALLS: Self = Self { delay: 2, early: false };

    /// `delay` calls later; with a call to spare exchanges are early.
    pub(in super::super) const fn standing(delay: usize) -> Self {
        Self { delay, early: delay > Self::TWO_CALLS.delay }
    }

    /// All that stand `delay` calls later: with exchanges late, and early where there is a call to spare.
    pub(in super::super) fn all(delay: usize) -> impl Iterator<Item = Self> {
        let late = Self { delay, early: false };
        let early = Some(Self::standing(delay)).filter(|standing| standing.early);
        std::iter::once(late).chain(early)
    }
}

/// When everything on the communicators is issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Timetable {
    /// Per demand: the stage at which it is requested.
    pub(in super::super) issues: Vec<usize>,
    /// Per demand: are planes that are there from an earlier use kept for it, although nobody requested that?
    pub(in super::super) kept: Vec<bool>,
    /// When gradients are reduced.
    pub(in super::super) reductions: Reductions,
}

impl Timetable {
    /// A timetable made by hand: one stage for every demand.
    pub(in super::super) fn by_hand(
        demands: &[Demand<'_>],
        mut issues: Vec<usize>,
        reduce_delay: usize,
    ) -> Self {
        together(demands, &mut issues, Pick::Latest);
        Self { reductions: Reductions::standing(reduce_delay), ..Self::as_issued(issues) }
    }

    /// Gathers issued at these stages, nothing kept, reductions two calls later.
    pub(in super::super) fn as_issued(issues: Vec<usize>) -> Self {
        Self { kept: vec![false; issues.len()], issues, reductions: Reductions::TWO_CALLS }
    }

    /// The timetable of a policy that needs no durations.
    ///
    /// # Errors
    /// [`PlanError::Prefetch`]; [`PlanError::Policy`] for one that needs them.
    pub(in super::super) fn of(
        prefetch: GatherStart,
        reduce_delay: usize,
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
        Ok(Self { reductions: Reductions::standing(reduce_delay), ..Self::as_issued(issues) })
    }
}
