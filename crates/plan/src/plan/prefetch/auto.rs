//! Automatic prefetch: the timetable within the budget that the forecast finds fastest.
//!
//! Law: candidates are made by the policies of this module; each is placed in the arena and timed like any
//! plan, so what is compared is what would run. A candidate over the budget is repaired forwards: gathers are
//! requested later until the arena fits. The shortest step wins, and of steps that differ by less than
//! [`ALIKE`] the one of fewest bytes.
//!
//! Three things are varied, one after the other, each around the best so far: how late gathers are, how far
//! after their calls reductions stand and whether exchanges are early, and how many planes are kept for
//! their next use instead of being gathered again, those first whose next use is nearest. Parts of them are
//! tried always; within a budget, halving then finds about as many as fit. Without one all of them fit, so
//! nothing is halved. Last come shallow depths, and within a budget limits in bytes, with every place of reductions:
//! where both want one link, what is best for the one depends on the other, and going from the best of one to the
//! best of the other misses it.

use super::{Demand, Pace, Reductions, Timetable, bytes, deadline, depth};
use crate::plan::PlanError;

/// Steps whose times differ by less than this share are alike.
const ALIKE: f64 = 0.005;

/// Margins before the latest safe beginning, in times of the longest gather.
const MARGINS: [f64; 5] = [0.0, 0.5, 1.0, 2.0, 4.0];

/// Places of reductions, in calls after their own.
const DELAYS: [usize; 5] = [1, 2, 3, 4, 6];

/// Depths, in calls.
const DEPTHS: [usize; 7] = [0, 1, 2, 3, 4, 6, 8];

/// Depths that are tried with every place of reductions.
const SHALLOW: [usize; 3] = [1, 2, 3];

/// Limits on gathered planes in flight that are tried likewise: the budget divided by each of these.
const BUDGET_DIVISORS: [usize; 4] = [2, 4, 8, 16];

/// Stages whose gathers are requested together, so that reductions have the link to themselves in between.
const BURSTS: [usize; 2] = [2, 4];

/// Parts of the planes that may be kept.
const KEPT: [f64; 5] = [1.0, 0.75, 0.5, 0.25, 0.125];

/// As many planes are kept as fit, to one part in so many.
const GRAIN: usize = 32;

/// How often a candidate is tried, repaired in between, before it is given up.
const TRIES: usize = 6;

/// What a timetable comes to.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Trial {
    /// Expected time of the step, nanoseconds.
    pub(in super::super) step: u64,
    /// Bytes of the transient region.
    pub(in super::super) bytes: usize,
}

/// The best timetable of at most `budget` transient bytes. The one of fewest bytes, if none is.
///
/// # Errors
/// What `attempt` returns.
pub(in super::super) fn search(
    demands: &[Demand<'_>],
    pace: &Pace,
    budget: Option<usize>,
    attempt: &mut dyn FnMut(&Timetable) -> Result<Trial, PlanError>,
) -> Result<Timetable, PlanError> {
    let mut found = Found { demands, budget: budget.unwrap_or(usize::MAX), tried: Vec::new(), attempt };
    let longest = pace.gathers.iter().copied().fold(0.0, f64::max);
    let as_late = |kept: Vec<bool>, reductions: Reductions, margin: f64| Timetable {
        issues: deadline::issues(demands, pace, &kept, reductions.delay + 1, margin * longest),
        kept,
        reductions,
    };
    let none = vec![false; demands.len()];
    for margin in MARGINS {
        found.attempt(as_late(none.clone(), Reductions::TWO_CALLS, margin))?;
    }
    for depth in DEPTHS {
        found.attempt(Timetable::as_issued(depth::issues(demands, depth)))?;
    }
    for burst in BURSTS {
        for offset in 0..burst {
            let together = |issue: &usize| (issue + burst - offset) / burst * burst;
            for depth in [burst, 2 * burst] {
                let early = depth::issues(demands, depth);
                let issues =
                    early.iter().map(|issue| together(issue).saturating_sub(burst - offset)).collect();
                found.attempt(Timetable::as_issued(issues))?;
            }
        }
    }
    for delay in DELAYS {
        for reductions in Reductions::all(delay) {
            let issues = found.best().issues.clone();
            found.attempt(Timetable { issues, kept: none.clone(), reductions })?;
            found.attempt(as_late(none.clone(), reductions, 1.0))?;
        }
    }
    let nearest = nearest(demands);
    for part in KEPT {
        let delay = found.best().reductions.delay;
        let mut kept = none.clone();
        let count = (nearest.len() as f64 * part).round() as usize;
        nearest.iter().take(count).for_each(|demand| kept[*demand] = true);
        for reductions in Reductions::all(delay) {
            found.attempt(as_late(kept.clone(), reductions, 1.0))?;
            found.attempt(as_late(kept.clone(), reductions, 4.0))?;
        }
    }
    // As many as fit: all of them, or found by halving.
    let (mut fits, mut exceeds) = (0, nearest.len() + 1);
    while budget.is_some() && exceeds - fits > nearest.len() / GRAIN + 1 {
        let count = fits.midpoint(exceeds);
        let mut kept = none.clone();
        nearest.iter().take(count).for_each(|demand| kept[*demand] = true);
        match found.attempt(as_late(kept, Reductions::standing(DELAYS[0]), 1.0))? {
            true => fits = count,
            false => exceeds = count,
        }
    }
    // Where nothing is reduced, they are all alike.
    let reduces = pace.reductions.iter().any(|time| *time > 0.0);
    for reductions in DELAYS.into_iter().filter(|_| reduces).flat_map(Reductions::all) {
        for depth in SHALLOW {
            let issues = depth::issues(demands, depth);
            found.attempt(Timetable { issues, kept: none.clone(), reductions })?;
        }
        let limits = BUDGET_DIVISORS.into_iter().filter_map(|divisor| Some(budget? / divisor));
        for issues in limits.filter_map(|limit| bytes::issues(demands, limit).ok()) {
            found.attempt(Timetable { issues, kept: none.clone(), reductions })?;
        }
    }
    Ok(found.best().clone())
}

/// Demands whose planes could be kept from their last use, the shortest way first.
fn nearest(demands: &[Demand<'_>]) -> Vec<usize> {
    let mut last_uses = std::collections::HashMap::new();
    let mut ways: Vec<(usize, usize)> = Vec::new();
    for (number, demand) in demands.iter().enumerate() {
        let before = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        if let Some(before) = before.filter(|_| demand.may_keep) {
            ways.push((demand.stage - before, number));
        }
    }
    ways.sort_unstable();
    ways.into_iter().map(|(_, number)| number).collect()
}

struct Found<'a, 'b> {
    demands: &'a [Demand<'a>],
    budget: usize,
    tried: Vec<(Timetable, Trial)>,
    attempt: &'b mut dyn FnMut(&Timetable) -> Result<Trial, PlanError>,
}

impl Found<'_, '_> {
    /// Tries a timetable, repaired until it fits; false if it never does.
    fn attempt(&mut self, mut timetable: Timetable) -> Result<bool, PlanError> {
        for number in 1..=TRIES {
            let known = self.tried.iter().find(|(known, _)| *known == timetable);
            let trial = match known {
                Some((_, trial)) => *trial,
                None => (self.attempt)(&timetable)?,
            };
            self.tried.push((timetable.clone(), trial));
            let Some(over) = trial.bytes.checked_sub(self.budget).filter(|over| *over > 0) else {
                return Ok(true);
            };
            if number == TRIES {
                break;
            }
            let most = bytes::most_in_flight(self.demands, &timetable.issues, &timetable.kept);
            match bytes::fit(self.demands, most.saturating_sub(over), &timetable.issues, &timetable.kept) {
                Ok(later) => timetable.issues = later,
                // Not even gathers on demand would fit.
                Err(_) => return Ok(false),
            }
        }
        Ok(false)
    }

    fn best(&self) -> &Timetable {
        let fitting = || self.tried.iter().filter(|(_, trial)| trial.bytes <= self.budget);
        let shortest = fitting().map(|(_, trial)| trial.step).min();
        let alike = shortest.map(|step| step as f64 * (1.0 + ALIKE));
        let best = match alike {
            Some(alike) => fitting()
                .filter(|(_, trial)| trial.step as f64 <= alike)
                .min_by_key(|(_, trial)| (trial.bytes, trial.step)),
            None => self.tried.iter().min_by_key(|(_, trial)| trial.bytes),
        };
        &best.unwrap_or(&self.tried[0]).0
    }
}
