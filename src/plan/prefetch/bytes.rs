//! As early as a number of gathered bytes in flight allows.
//!
//! Law: at no stage do the planes that are asked for and not yet used for the last time take more than the limit, every
//! plane counted as aligned in the arena; and each demand is asked for as early as that allows, behind the demands
//! before it. A limit that does not hold the planes of a call beside the next ones is refused: nothing could be
//! gathered ahead.

use std::collections::HashMap;

use super::Demand;
use super::together::together;
use crate::format::Orientation;
use crate::id::WeightId;
use crate::plan::PlanError;

pub(super) fn issues(demands: &[Demand<'_>], limit: usize) -> Result<Vec<usize>, PlanError> {
    check_pairs(demands, limit)?;
    fit(demands, limit, &vec![0; demands.len()], &vec![false; demands.len()])
}

/// As early as `limit` bytes allow, but none before its `earliest` stage. `earliest` never goes back.
///
/// # Errors
/// [`PlanError::Prefetch`] when planes that must be kept leave no room for a demand.
pub(super) fn fit(
    demands: &[Demand<'_>],
    limit: usize,
    earliest: &[usize],
    kept: &[bool],
) -> Result<Vec<usize>, PlanError> {
    let stages = demands.last().map_or(0, |demand| demand.stage + 1);
    let mut in_flight = vec![0usize; stages];
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    let mut issues = Vec::with_capacity(demands.len());
    let mut floor = 0;
    for ((demand, earliest), kept) in demands.iter().zip(earliest).zip(kept) {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let fits = |stage: &usize| in_flight[*stage].saturating_add(demand.bytes) <= limit;
        let lowest = floor.max(*earliest).min(demand.stage);
        let fitting = (lowest..=demand.stage).rev().take_while(fits).last();
        let (issue, from) = match (held, fitting) {
            (Some(last_use), _) if demand.keeps || *kept => (floor, last_use + 1),
            (Some(last_use), Some(issue)) if issue <= last_use + 1 => (issue, last_use + 1),
            (_, Some(issue)) => (issue, issue),
            (Some(last_use), None) if last_use == demand.stage => (last_use, last_use + 1),
            (_, None) => {
                let others = in_flight[demand.stage];
                return Err(too_little(demand, demand, limit, others.saturating_add(demand.bytes)));
            }
        };
        for bytes in in_flight.iter_mut().take(demand.stage + 1).skip(from) {
            *bytes = bytes.saturating_add(demand.bytes);
            if *bytes > limit {
                return Err(too_little(demand, demand, limit, *bytes));
            }
        }
        floor = floor.max(issue);
        issues.push(issue);
    }
    together(demands, &mut issues, usize::max);
    Ok(issues)
}

/// The most bytes in flight at any stage, if demands are asked for at these stages.
pub(super) fn most_in_flight(demands: &[Demand<'_>], issues: &[usize], kept: &[bool]) -> usize {
    let stages = demands.last().map_or(0, |demand| demand.stage + 1);
    let mut in_flight = vec![0usize; stages];
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    for ((demand, issue), kept) in demands.iter().zip(issues).zip(kept) {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let from = match held {
            Some(last_use) if demand.keeps || *kept || *issue <= last_use + 1 => last_use + 1,
            _ => *issue,
        };
        for bytes in in_flight.iter_mut().take(demand.stage + 1).skip(from) {
            *bytes = bytes.saturating_add(demand.bytes);
        }
    }
    in_flight.into_iter().max().unwrap_or(0)
}

/// The planes of every call beside the first ones of the next call that needs others.
fn check_pairs(demands: &[Demand<'_>], limit: usize) -> Result<(), PlanError> {
    let mut largest: Option<(usize, &Demand<'_>, &Demand<'_>)> = None;
    for call in demands.chunk_by(|one, other| one.stage == other.stage) {
        let Some(last) = call.last() else { continue };
        let mut planes: Vec<_> = call.iter().map(|one| (one.weight, one.orientation, one.bytes)).collect();
        planes.sort_unstable();
        planes.dedup();
        let own: usize = planes.iter().fold(0, |sum: usize, (.., bytes)| sum.saturating_add(*bytes));
        let is_other = |next: &&Demand<'_>| {
            next.stage > last.stage
                && !planes.iter().any(|(w, o, _)| (*w, *o) == (next.weight, next.orientation))
        };
        let behind = demands.partition_point(|one| one.stage <= last.stage);
        let next = demands[behind..].iter().find(is_other).unwrap_or(last);
        let pair = if next.stage > last.stage { own.saturating_add(next.bytes) } else { own };
        if largest.is_none_or(|(most, ..)| pair > most) {
            largest = Some((pair, last, next));
        }
    }
    match largest {
        Some((needed, first, second)) if needed > limit => Err(too_little(first, second, limit, needed)),
        _ => Ok(()),
    }
}

fn too_little(first: &Demand<'_>, second: &Demand<'_>, limit: usize, needed: usize) -> PlanError {
    let named = |demand: &Demand<'_>| format!("`{}` for call `{}`", demand.name, demand.call.label());
    PlanError::Prefetch { first: named(first), second: named(second), needed, limit }
}
