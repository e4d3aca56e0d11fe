//! Prefetch by bytes: gathers begin as early as a number of gathered bytes in flight allows.
//!
//! Law: at no stage do the planes that are requested and not yet used for the last time take more than the
//! limit, every plane counted as aligned in the arena; and each demand is requested as early as that allows,
//! after the demands before it. Planes that must be there, of a call and of what is kept for a later one,
//! have their room before anything is requested early; so a limit is refused exactly if it does not hold
//! these, or not the planes of a call beside the next ones: nothing could be gathered ahead. The error names
//! what is enough.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::Demand;
use super::together::{Pick, together};
use crate::plan::PlanError;
use warpweft_base::id::WeightId;
use warpweft_format::Orientation;

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
        return Err(too_little_at(demands, kept, limit, needed));
    }
    // Then nothing has to be counted, however many stages planes live.
    let all = demands.iter().fold(0usize, |all, demand| all.saturating_add(demand.bytes));
    let fits_always = all <= limit;
    for ((demand, earliest), kept) in demands.iter().zip(earliest).zip(kept) {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let lowest = floor.max(*earliest).min(demand.stage);
        // The planes have their room at the stage itself; every stage before it takes as much again.
        let fits = |stage: &usize| in_flight[*stage].saturating_add(demand.bytes) <= limit;
        let issue = if fits_always {
            lowest
        } else {
            (lowest..demand.stage).rev().take_while(fits).last().unwrap_or(demand.stage)
        };
        let (issue, from) = match held {
            Some(last_use) if demand.keeps || *kept => (floor, last_use + 1),
            Some(last_use) if last_use == demand.stage => (issue, demand.stage),
            Some(last_use) if issue <= last_use + 1 => (issue, last_use + 1),
            _ => (issue, issue),
        };
        if !fits_always && !(held.is_some() && (demand.keeps || *kept)) {
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

/// The most bytes in flight at any stage, if demands are requested at these stages.
pub(super) fn most_in_flight(demands: &[Demand<'_>], issues: &[usize], kept: &[bool]) -> usize {
    in_flight(demands, issues, kept).into_iter().max().unwrap_or(0)
}

/// The bytes in flight at every stage, if demands are requested at these stages.
fn in_flight(demands: &[Demand<'_>], issues: &[usize], kept: &[bool]) -> Vec<usize> {
    let stages = demands.last().map_or(0, |demand| demand.stage + 1);
    let mut change = vec![0i128; stages + 1];
    for (from, demand) in stays(demands, issues, kept) {
        change[from] += demand.bytes as i128;
        change[demand.stage + 1] -= demand.bytes as i128;
    }
    let mut held = 0i128;
    let sum = |change: &i128| {
        held += change;
        usize::try_from(held).unwrap_or(usize::MAX)
    };
    change[..stages].iter().map(sum).collect()
}

/// Every demand whose planes take bytes of their own, with the first stage at which they do, if demands are
/// requested at these stages. They do until the demand's own stage; no planes are there twice.
fn stays<'a, 'b>(
    demands: &'a [Demand<'b>],
    issues: &[usize],
    kept: &[bool],
) -> impl Iterator<Item = (usize, &'a Demand<'b>)> {
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    demands.iter().zip(issues).zip(kept).filter_map(move |((demand, issue), kept)| {
        let held = last_uses.insert((demand.weight, demand.orientation), demand.stage);
        let from = match held {
            Some(last_use) if demand.keeps || *kept || *issue <= last_use + 1 => last_use + 1,
            _ => *issue,
        };
        (from <= demand.stage).then_some((from, demand))
    })
}

/// What must be held at every stage, and the planes of every call beside the first ones of the next call that
/// needs others.
fn check_least(demands: &[Demand<'_>], limit: usize, kept: &[bool]) -> Result<(), PlanError> {
    let least = must_hold(demands, kept).into_iter().max().unwrap_or(0);
    let mut widest: Option<(usize, Vec<&Demand<'_>>, Option<&Demand<'_>>)> = None;
    for call in demands.chunk_by(|one, other| one.stage == other.stage) {
        let Some(last) = call.last() else { continue };
        let planes = |one: &Demand<'_>| (one.weight, one.orientation);
        let mut own: Vec<&Demand<'_>> = call.iter().collect();
        own.sort_by_key(|one| planes(one));
        own.dedup_by_key(|one| planes(one));
        let bytes = own.iter().fold(0, |sum: usize, one| sum.saturating_add(one.bytes));
        let is_other = |next: &&Demand<'_>| {
            next.stage > last.stage && !own.iter().any(|one| planes(one) == planes(next))
        };
        let after = demands.partition_point(|one| one.stage <= last.stage);
        let next = demands[after..].iter().find(is_other);
        let both = bytes.saturating_add(next.map_or(0, |next| next.bytes));
        if widest.as_ref().is_none_or(|(most, ..)| both > *most) {
            widest = Some((both, own, next));
        }
    }
    match widest {
        Some((needed, own, next)) if needed > limit && needed >= least => {
            let next = next.map(|next| format!("`{}` for call `{}`", next.name, next.call.label()));
            Err(too_little(&own, next, limit, needed))
        }
        _ if least > limit => Err(too_little_at(demands, kept, limit, least)),
        _ => Ok(()),
    }
}

/// The refusal that names the first stage at which so many bytes are held, and what holds them.
fn too_little_at(demands: &[Demand<'_>], kept: &[bool], limit: usize, needed: usize) -> PlanError {
    let stage = must_hold(demands, kept).into_iter().position(|bytes| bytes == needed).unwrap_or(0);
    let on_demand: Vec<usize> = demands.iter().map(|demand| demand.stage).collect();
    let there = |(from, demand): &(usize, &Demand<'_>)| *from <= stage && stage <= demand.stage;
    let held = stays(demands, &on_demand, kept).filter(there).map(|(_, demand)| demand);
    let (own, later): (Vec<_>, Vec<_>) = held.partition(|demand| demand.stage == stage);
    let kept = (!later.is_empty()).then(|| format!("{}, kept for later calls,", largest(&later)));
    too_little(&own, kept, limit, needed)
}

/// The refusal that names the planes of a call and what must be there beside them.
fn too_little(own: &[&Demand<'_>], beside: Option<String>, limit: usize, needed: usize) -> PlanError {
    let call = own.first().map(|one| format!("call `{}`, which uses {},", one.call.label(), largest(own)));
    let needs = match (call, beside) {
        (Some(call), Some(beside)) => format!("{call} and beside it {beside} need"),
        (Some(call), None) => format!("{call} needs"),
        (None, Some(beside)) => format!("{beside} need"),
        (None, None) => "the program needs".to_owned(),
    };
    PlanError::Prefetch { needs, needed, limit }
}

/// The weights of these demands, the largest of them by name.
fn largest(demands: &[&Demand<'_>]) -> String {
    const NAMED: usize = 2;
    let mut sizes: Vec<_> = demands.iter().map(|demand| (Reverse(demand.bytes), demand.name)).collect();
    sizes.sort_unstable();
    let mut names: Vec<String> =
        sizes.iter().take(NAMED).map(|(Reverse(bytes), name)| format!("`{name}` ({bytes} bytes)")).collect();
    if let Some(more) = sizes.len().checked_sub(NAMED).filter(|more| *more > 0) {
        names.push(format!("{more} more"));
    }
    names.join(" and ")
}
