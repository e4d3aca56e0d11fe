//! The best timetable within the budget, by what it is expected to take.
//!
//! Law: candidates are made by the policies of this room; each is placed in the arena and timed like any plan, so what is
//! compared is what would run. A candidate over the budget is repaired forwards: gathers are asked for later until the arena fits.
//! The shortest step wins, and of steps that differ by less than [`ALIKE`] the one of fewest bytes.

use super::{Demand, Pace, Timetable, bytes, deadline, depth};
use crate::plan::PlanError;

/// Steps whose times differ by less than this share are alike.
const ALIKE: f64 = 0.005;

/// Margins before the latest safe beginning, in times of the longest gather.
const MARGINS: [f64; 5] = [0.0, 0.5, 1.0, 2.0, 4.0];

/// Places of reductions, in calls behind their own.
const BEHIND: [usize; 4] = [1, 2, 3, 5];

/// Depths, in uses.
const DEPTHS: [usize; 7] = [0, 1, 2, 3, 4, 6, 8];

/// How often a candidate is repaired before it is given up.
const REPAIRS: usize = 6;

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
    let as_late = |behind: usize, margin: f64| deadline::issues(demands, pace, behind + 1, margin * longest);
    for margin in MARGINS {
        found.attempt(as_late(BEHIND[0], margin), BEHIND[0])?;
    }
    for depth in DEPTHS {
        found.attempt(depth::issues(demands, depth), BEHIND[0])?;
    }
    for behind in BEHIND {
        if let Some(best) = found.best() {
            let issues = found.tried[best].0.issues.clone();
            found.attempt(issues, behind)?;
        }
        found.attempt(as_late(behind, MARGINS[2]), behind)?;
    }
    let best = found.best().unwrap_or(0);
    Ok(found.tried.swap_remove(best).0)
}

struct Found<'a, 'b> {
    demands: &'a [Demand<'a>],
    budget: usize,
    tried: Vec<(Timetable, Trial)>,
    attempt: &'b mut dyn FnMut(&Timetable) -> Result<Trial, PlanError>,
}

impl Found<'_, '_> {
    /// Tries a timetable, repaired until it fits.
    fn attempt(&mut self, issues: Vec<usize>, reduce_behind: usize) -> Result<(), PlanError> {
        let mut timetable = Timetable { issues, reduce_behind };
        for _ in 0..REPAIRS {
            if self.tried.iter().any(|(known, _)| *known == timetable) {
                return Ok(());
            }
            let trial = (self.attempt)(&timetable)?;
            self.tried.push((timetable.clone(), trial));
            let Some(over) = trial.bytes.checked_sub(self.budget).filter(|over| *over > 0) else {
                return Ok(());
            };
            let limit = bytes::most_in_flight(self.demands, &timetable.issues).saturating_sub(over);
            match bytes::fit(self.demands, limit, &timetable.issues) {
                Ok(later) => timetable.issues = later,
                // Every gather would have to come where it is needed, and then some.
                Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn best(&self) -> Option<usize> {
        let fitting = || {
            let fits = |(_, (_, trial)): &(usize, &(Timetable, Trial))| trial.bytes <= self.budget;
            self.tried.iter().enumerate().filter(fits)
        };
        let Some(shortest) = fitting().map(|(_, (_, trial))| trial.step).min() else {
            return (0..self.tried.len()).min_by_key(|number| self.tried[*number].1.bytes);
        };
        let alike = shortest as f64 * (1.0 + ALIKE);
        let among = fitting().filter(|(_, (_, trial))| trial.step as f64 <= alike);
        among.min_by_key(|(_, (_, trial))| (trial.bytes, trial.step)).map(|(number, _)| number)
    }
}
