//! PL-6: the byte counts of a plan are exact, and the budget is kept.
//!
//! Law: a transient slot is alive from its first access in T to its last, and counts with its size rounded up
//! to [`ALIGNMENT`]. The largest sum over T is the bound no layout can beat; the plan must state it, where it
//! is reached, how much of it is weights and gradients, and an arena that is at least as large. Which contents
//! these are is vocabulary ([`crate::layout::Content::is_of_a_weight`]), as accesses of ops are.

use super::{Accesses, Verdict, VerifyError};
use crate::layout::{ALIGNMENT, Residency};
use crate::plan::StepPlan;

/// Checks all counts and returns the live bytes of the fullest moment.
pub(super) fn check(plan: &StepPlan, accesses: &Accesses) -> Verdict<usize> {
    let bounds = &plan.bounds;
    let live = live_bytes(plan, accesses);
    let peak = live.iter().map(|live| live.all).max().unwrap_or(0);
    let at_peak = live.get(bounds.live_peak.index()).copied().unwrap_or_default();
    equal("bounds.resident_bytes", bounds.resident_bytes, plan.arena.resident_bytes)?;
    equal("bounds.transient_bytes", bounds.transient_bytes, plan.arena.transient_bytes)?;
    equal("bounds.live_bytes", bounds.live_bytes, peak)?;
    equal("the live bytes at bounds.live_peak", at_peak.all, peak)?;
    equal("bounds.live_weight_bytes", bounds.live_weight_bytes, at_peak.weights)?;
    equal(
        "bounds.wire_bytes",
        bounds.wire_bytes,
        plan.tasks.iter().fold(0, |sum: usize, task| sum.saturating_add(task.wire_bytes)),
    )?;
    match plan.policy.budget {
        Some(budget) if plan.arena.transient_bytes > budget => refuse(
            "the transient region",
            format!("has {} bytes, more than the budget of {budget}", plan.arena.transient_bytes),
            "lower prefetch.depth or raise the budget",
        ),
        _ => Ok(peak),
    }
}

/// Transient bytes alive at a task.
#[derive(Clone, Copy, Default)]
struct Live {
    all: usize,
    /// The share of planes, dense values and gradients of sharded weights on their way.
    weights: usize,
}

/// Live transient bytes at every task.
fn live_bytes(plan: &StepPlan, accesses: &Accesses) -> Vec<Live> {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.arena.slots.len()];
    for (position, touched) in accesses.iter().enumerate() {
        for (slot, _) in touched {
            let life = &mut lives[slot.index()];
            *life = Some((life.map_or(position, |(first, _)| first), position));
        }
    }
    let mut born = vec![Live::default(); accesses.len()];
    let mut dead = vec![Live::default(); accesses.len()];
    for (slot, life) in plan.arena.slots.iter().zip(&lives) {
        let (Residency::Transient, Some((first, last))) = (slot.residency, life) else { continue };
        let size = slot.region.bytes.next_multiple_of(ALIGNMENT);
        let weights = if slot.content.is_of_a_weight() { size } else { 0 };
        for edge in [&mut born[*first], &mut dead[*last]] {
            edge.all += size;
            edge.weights += weights;
        }
    }
    let mut alive = Live::default();
    let mut live = Vec::with_capacity(accesses.len());
    for (born, dead) in born.iter().zip(&dead) {
        alive = Live { all: alive.all + born.all, weights: alive.weights + born.weights };
        live.push(alive);
        alive = Live { all: alive.all - dead.all, weights: alive.weights - dead.weights };
    }
    live
}

fn equal(subject: &str, stated: usize, counted: usize) -> Verdict<()> {
    if stated == counted {
        return Ok(());
    }
    refuse(
        subject,
        format!("is {stated}, but the plan's slots and tasks give {counted}"),
        "recount after every change",
    )
}

fn refuse<T>(subject: &str, problem: String, remedy: &str) -> Verdict<T> {
    Err(Box::new(VerifyError::Bytes { subject: subject.into(), problem, remedy: remedy.into() }))
}
