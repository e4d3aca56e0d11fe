//! As early as a number of gathered bytes in flight allows.
//!
//! Law: at no stage do the planes that are asked for and not yet used for the last time take more than the
//! limit, every plane counted as aligned in the arena; and each demand is asked for as early as that allows,
//! behind the demands before it. Planes that must be there, of a call and of what is kept for a later one,
//! have their room before anything is asked for early; so a limit is refused exactly if it does not hold
//! these, or not the planes of a call beside the next ones: nothing could be gathered ahead. The error names
//! what is enough.

use std::collections::HashMap;

use super::Demand;
use super::together::{Pick, together};
use crate::format::Orientation;
use crate::id::WeightId;
use crate::plan::PlanError;

pub(super) fn issues(demands: &[Demand<'_>], limit: usize) -> Result<Vec<usize>, PlanError> {
    let none = vec![false; demands.len()];
    check_least(demands, limit, &none)?;
    fit(demands, limit, &vec![0; demands.len()], &none)
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
    let mut in_flight = must_hold(demands, kept);
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    let mut issues = Vec::with_capacity(demands.len());
    let mut floor = 0;
    if let Some(needed) = in_flight.iter().copied().max().filter(|needed| *needed > limit) {
        return Err(too_little_at(demands, &in_flight, limit, needed));
    }
    for ((demand, earliest), kept) in demands.iter().zip(earliest).zip(kept) {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let lowest = floor.max(*earliest).min(demand.stage);
        // The planes have their room at the stage itself; every stage before it takes as much again.
        let fits = |stage: &usize| in_flight[*stage].saturating_add(demand.bytes) <= limit;
        let issue = (lowest..demand.stage).rev().take_while(fits).last().unwrap_or(demand.stage);
        let (issue, from) = match held {
            Some(last_use) if demand.keeps || *kept => (floor, last_use + 1),
            Some(last_use) if last_use == demand.stage => (issue, demand.stage),
            Some(last_use) if issue <= last_use + 1 => (issue, last_use + 1),
            _ => (issue, issue),
        };
        if !(held.is_some() && (demand.keeps || *kept)) {
            for bytes in in_flight.iter_mut().take(demand.stage).skip(from) {
                *bytes = bytes.saturating_add(demand.bytes);
            }
        }
        floor = floor.max(issue);
        issues.push(issue);
    }
    together(demands, &mut issues, Pick::Latest);
    Ok(issues)
}

/// Per stage, the bytes that no choice of stages avoids: every plane at the stages of its uses, and between
/// two uses where it is kept.
fn must_hold(demands: &[Demand<'_>], kept: &[bool]) -> Vec<usize> {
    let on_demand: Vec<usize> = demands.iter().map(|demand| demand.stage).collect();
    in_flight(demands, &on_demand, kept)
}

/// The most bytes in flight at any stage, if demands are asked for at these stages.
pub(super) fn most_in_flight(demands: &[Demand<'_>], issues: &[usize], kept: &[bool]) -> usize {
    in_flight(demands, issues, kept).into_iter().max().unwrap_or(0)
}

/// The bytes in flight at every stage, if demands are asked for at these stages.
fn in_flight(demands: &[Demand<'_>], issues: &[usize], kept: &[bool]) -> Vec<usize> {
    let stages = demands.last().map_or(0, |demand| demand.stage + 1);
    let mut change = vec![0i128; stages + 1];
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    for ((demand, issue), kept) in demands.iter().zip(issues).zip(kept) {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let from = match held {
            Some(last_use) if demand.keeps || *kept || *issue <= last_use + 1 => last_use + 1,
            _ => *issue,
        };
        if from <= demand.stage {
            change[from] += demand.bytes as i128;
            change[demand.stage + 1] -= demand.bytes as i128;
        }
    }
    let mut held = 0i128;
    let sum = |change: &i128| {
        held += change;
        usize::try_from(held).unwrap_or(usize::MAX)
    };
    change[..stages].iter().map(sum).collect()
}

/// What must be held at every stage, and the planes of every call beside the first ones of the next call that
/// needs others.
fn check_least(demands: &[Demand<'_>], limit: usize, kept: &[bool]) -> Result<(), PlanError> {
    let held = must_hold(demands, kept);
    let least = held.iter().copied().max().unwrap_or(0);
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
        Some((needed, first, second)) if needed > limit && needed >= least => {
            Err(too_little(first, second, limit, needed))
        }
        _ if least > limit => Err(too_little_at(demands, &held, limit, least)),
        _ => Ok(()),
    }
}

/// The refusal that names the first stage at which so many bytes are held.
fn too_little_at(demands: &[Demand<'_>], held: &[usize], limit: usize, needed: usize) -> PlanError {
    let stage = held.iter().position(|bytes| *bytes == needed);
    let at = stage.and_then(|stage| demands.iter().rev().find(|demand| demand.stage <= stage));
    match at.or(demands.first()) {
        Some(demand) => too_little(demand, demand, limit, needed),
        None => PlanError::Prefetch { first: String::new(), second: String::new(), needed, limit },
    }
}

fn too_little(first: &Demand<'_>, second: &Demand<'_>, limit: usize, needed: usize) -> PlanError {
    let named = |demand: &Demand<'_>| format!("`{}` for call `{}`", demand.name, demand.call.label());
    PlanError::Prefetch { first: named(first), second: named(second), needed, limit }
}
