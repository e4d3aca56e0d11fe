//! What lanes take from each other, as ratios from one run.
//!
//! Laws:
//! - A task that takes `d` by itself and `m` here, `o` of it beside another lane, did `d − (m − o)` of its work in that time; so it ran
//!   `o / (d − m + o)` times slower there. That undoes [`crate::cluster::stretched`] exactly.
//! - What `d` is comes from the chain of the same shape, never from a model.
//! - A task counts for one pair of lanes only if it ran beside one task of the other and beside nothing else.
//! - Devices slow both of two tasks, the simulator one of them, whichever is issued later. So a task that took what it takes by itself, to a
//!   thousandth, while its neighbour was slowed, is the one that was not charged: it says nothing.
//! - Two collectives share bytes: what both did in the time `o` in which both ran gives `f = 2·o / work`, whoever of them was slowed.

use std::collections::BTreeMap;

use super::figures::{Figure, middle};
use super::subject::{Observation, Step};
use crate::cluster::Algorithm;
use crate::layout::LaneKind;

/// Least share of a task beside the other lane that says something.
const LEAST: f64 = 0.2;

/// Most time beside any third task, as a share of that.
const MOST_ELSE: f64 = 0.03;

/// Share by which a task is longer than by itself if it was slowed at all.
const SLOWED: f64 = 1e-3;

/// The kinds of lanes, whatever the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Compute,
    Quantize,
    Collective,
}

impl Side {
    const fn of(kind: LaneKind) -> Self {
        match kind {
            LaneKind::Compute => Self::Compute,
            LaneKind::Quantize => Self::Quantize,
            LaneKind::Communicator(_) => Self::Collective,
        }
    }
}

/// What tasks take by themselves, by what they do: op and the shares of its price.
pub(super) struct Alone(BTreeMap<(&'static str, [u64; 4]), f64>);

fn kinds(observation: &Observation) -> Vec<(&'static str, [u64; 4])> {
    let shares = observation.shares(Algorithm::Direct);
    let kind = |(task, share): (&crate::plan::Task, super::subject::Share)| {
        let numbers = [share.latencies, share.link_bytes, share.memory_bytes, share.flops];
        (task.op.name(), numbers.map(f64::to_bits))
    };
    observation.plan.tasks.iter().zip(shares).map(kind).collect()
}

impl Alone {
    /// From a chain.
    pub(super) fn of(chain: &Observation) -> Self {
        let mut times: BTreeMap<_, Vec<f64>> = BTreeMap::new();
        for (number, kind) in kinds(chain).into_iter().enumerate() {
            times.entry(kind).or_default().extend(chain.times(number));
        }
        Self(times.into_iter().filter_map(|(kind, times)| Some((kind, middle(times)?))).collect())
    }

    /// The longest time of an op whose kind `wanted` picks.
    pub(super) fn longest(&self, wanted: &str) -> f64 {
        self.0.iter().filter(|((name, _), _)| *name == wanted).map(|(_, time)| *time).fold(0.0, f64::max)
    }
}

/// A task that ran beside others.
struct Ran {
    side: Side,
    lane: LaneKind,
    begin: f64,
    end: f64,
    alone: f64,
}

impl Ran {
    fn beside(&self, other: &Self) -> f64 {
        (self.end.min(other.end) - self.begin.max(other.begin)).max(0.0)
    }

    fn taken(&self) -> f64 {
        self.end - self.begin
    }

    fn is_slowed(&self) -> bool {
        self.taken() > self.alone * (1.0 + SLOWED)
    }

    /// By how much it was slowed in `beside` nanoseconds of its time.
    fn factor(&self, beside: f64) -> f64 {
        let work = self.alone - (self.taken() - beside);
        beside / work.max(1e-3 * beside)
    }
}

fn ran(observation: &Observation, step: &Step, rank: usize, alone: &Alone) -> Vec<Ran> {
    let tasks = observation.plan.tasks.iter().zip(kinds(observation)).enumerate();
    let ran = |(number, (task, kind)): (usize, (&crate::plan::Task, _))| {
        let lane = observation.plan.lanes.get(task.lane.index())?.kind;
        let (begin, end) = step.span(rank, number, task.op.is_collective());
        let alone = *alone.0.get(&kind)?;
        Some(Ran { side: Side::of(lane), lane, begin: begin as f64, end: end as f64, alone })
    };
    tasks.filter_map(ran).collect()
}

/// The factor on tasks of lane `own` beside lane `other`.
pub(super) fn factor(observation: &Observation, alone: &Alone, own: Side, other: Side) -> Figure {
    let mut factors = Vec::new();
    for step in &observation.steps {
        for rank in 0..step.ranks.len() {
            let all = ran(observation, step, rank, alone);
            let own = all.iter().filter(|task| task.side == own && task.alone > 0.0);
            factors.extend(own.filter_map(|task| beside_one(task, &all, other)));
        }
    }
    summary(factors, "tasks beside one of that lane")
}

/// By how much a task was slowed by one task of a lane of kind `other`, if it says.
fn beside_one(task: &Ran, all: &[Ran], other: Side) -> Option<f64> {
    let others = || all.iter().filter(|other| other.lane != task.lane);
    let together: f64 = others().map(|other| task.beside(other)).sum();
    let partner = others().filter(|partner| partner.side == other);
    let partner = partner.max_by(|one, another| task.beside(one).total_cmp(&task.beside(another)))?;
    let beside = task.beside(partner);
    let charged_elsewhere = !task.is_slowed() && partner.is_slowed();
    let says = beside >= LEAST * task.taken() && together - beside <= MOST_ELSE * beside && !charged_elsewhere;
    says.then(|| task.factor(beside))
}

/// The factor on two collectives of different communicators.
pub(super) fn collectives(observation: &Observation, alone: &Alone) -> Figure {
    let mut factors = Vec::new();
    for step in &observation.steps {
        for rank in 0..step.ranks.len() {
            let all = ran(observation, step, rank, alone);
            let (mut beside, mut work) = (0.0, 0.0);
            for task in all.iter().filter(|task| task.side == Side::Collective) {
                let others = all.iter().filter(|other| other.side == task.side && other.lane != task.lane);
                let together: f64 = others.map(|other| task.beside(other)).sum();
                if together > 0.0 {
                    beside += together;
                    work += (task.alone - (task.taken() - together)).max(0.0);
                }
            }
            if beside > 0.0 {
                factors.push(beside / work.max(1e-3 * beside));
            }
        }
    }
    summary(factors, "steps in which gathers ran beside reductions")
}

fn summary(mut factors: Vec<f64>, of_what: &str) -> Figure {
    factors.sort_by(f64::total_cmp);
    let (count, quartile) = (factors.len(), factors.len() / 4);
    let spread = factors.get(quartile).zip(factors.get(count.saturating_sub(1 + quartile)));
    let spread = spread.map(|(lower, upper)| format!("{lower:.2} to {upper:.2}"));
    match (middle(factors), spread) {
        (Some(found), Some(spread)) => {
            let how = format!("measured: median of {count} {of_what}, half of which are {spread}");
            Figure::new(found.max(1.0), how)
        }
        _ => Figure::new(1.0, format!("not seen: no {of_what}")),
    }
}
