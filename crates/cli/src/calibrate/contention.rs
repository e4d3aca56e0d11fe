//! Contention between lanes, as ratios from one run.
//!
//! Laws:
//! - A task that takes `d` by itself and `m` here, `o` of it beside another lane, did `d − (m − o)` of its
//!   work in that time; so it ran `o / (d − m + o)` times slower there. That undoes
//!   what `cluster::Charges` does where no collective stands in another's way.
//! - What `d` is comes from products of the same shape, one after the other for as long as beside the other
//!   lane, and from the backward after them; never from a model, and never from a device that stood still: a
//!   GPU that multiplies for long lowers its clock, and what it takes longer for that no other lane takes
//!   from it. What collectives take from each other is compared with chains, as no product runs long beside
//!   them.
//! - A task counts for one pair of lanes only if it ran beside no third, and mostly beside one task of the other.
//! - Devices slow both of two tasks, the simulator one of them, whichever begins later. So a task that
//!   took no longer than by itself while its neighbour was slowed is taken for the one that was not charged:
//!   it says nothing.
//! - A task of which nothing was done beside the other lane, by what it takes alone, says nothing: it waited
//!   for something else, and a factor without a bound is no measurement.
//! - Two collectives share bytes: what both did in the time `o` in which both ran gives `f = 2·o / work`,
//!   whoever of them was slowed.

use warpweft_plan::cluster::Algorithm;
use warpweft_plan::layout::LaneKind;
use warpweft_plan::model::Phase;
use warpweft_plan::op::{self, Op};
use warpweft_plan::plan::Task;

use super::figure::{Figure, middle};
use super::jitter::Delays;
use super::subject::{Observation, Share, Step};

/// Least share of a task beside the other lane that says something.
const LEAST: f64 = 0.2;

/// Most time beside any third lane, as a share of that.
const MOST_ELSE: f64 = 0.03;

/// Least share of the time beside the other lane that is beside one task of it; the second where no task
/// reaches the first.
const MOST_OF_IT: [f64; 2] = [0.98, 0.85];

/// Least work done in the time beside another lane, as a share of that time. Below it nothing was done, as
/// far as times tell.
const LEAST_WORK: f64 = 0.01;

/// Share by which a task must be longer than by itself to count as slowed: three times the mean delay,
/// between these.
const LEAST_NOISE: f64 = 1e-3;
const MOST_NOISE: f64 = 0.05;

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
            LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => Self::Quantize,
            LaneKind::Communicator(_) => Self::Collective,
        }
    }
}

/// A kind of task that takes one time: its op, for a call its phase, and what its price is made of.
#[derive(Clone, Copy, Debug)]
struct Kind {
    op: &'static str,
    phase: Option<Phase>,
    share: Share,
}

impl Kind {
    /// Do both take the same time? Slots that hold one number for each weight of a program make prices differ
    /// by a few bytes.
    fn is_like(&self, other: &Self) -> bool {
        let near = |one: f64, another: f64| (one - another).abs() <= 1e-3 * one.max(another);
        let (own, its) = (self.share, other.share);
        (self.op, self.phase) == (other.op, other.phase)
            && near(own.latencies, its.latencies)
            && near(own.link_bytes, its.link_bytes)
            && near(own.memory_bytes, its.memory_bytes)
            && near(own.flops, its.flops)
            && near(own.kernels, its.kernels)
    }
}

fn kinds(observation: &Observation) -> Vec<Kind> {
    let shares = observation.shares(Algorithm::Direct);
    let kind = |(task, share): (&Task, Share)| {
        let phase = match &task.op {
            Op::Compute(op::Compute { call, .. }) => {
                observation.plan.calls.get(call.index()).map(|call| call.phase)
            }
            _ => None,
        };
        Kind { op: task.op.name(), phase, share }
    };
    observation.plan.tasks.iter().zip(shares).map(kind).collect()
}

/// What tasks take by themselves.
pub(super) struct Alone(Vec<(Kind, f64)>);

impl Alone {
    /// From steps in which lanes stand still beside each other.
    pub(super) fn of(observations: &[&Observation]) -> Self {
        let mut times: Vec<(Kind, Vec<f64>)> = Vec::new();
        for observation in observations {
            for (number, kind) in kinds(observation).into_iter().enumerate() {
                let more = observation.times_apart(number);
                match times.iter_mut().find(|(known, _)| known.is_like(&kind)) {
                    Some((_, known)) => known.extend(more),
                    None => times.push((kind, more)),
                }
            }
        }
        Self(times.into_iter().filter_map(|(kind, times)| Some((kind, middle(times)?))).collect())
    }

    /// The longest time of an op.
    pub(super) fn longest(&self, op: &str) -> f64 {
        self.0.iter().filter(|(kind, _)| kind.op == op).map(|(_, time)| *time).fold(0.0, f64::max)
    }

    fn time(&self, kind: &Kind) -> Option<f64> {
        self.0.iter().find(|(known, _)| known.is_like(kind)).map(|(_, time)| *time)
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

    fn is_slowed(&self, noise: f64) -> bool {
        self.taken() > self.alone * (1.0 + noise)
    }

    /// By how much it was slowed in `beside` nanoseconds of its time, if anything was done in them.
    fn factor(&self, beside: f64) -> Option<f64> {
        slowdown(beside, self.alone - (self.taken() - beside))
    }
}

/// How many times longer `work` took, done in the time `beside`; `None` where that says nothing.
fn slowdown(beside: f64, work: f64) -> Option<f64> {
    (beside > 0.0 && work >= LEAST_WORK * beside).then(|| beside / work)
}

fn ran(observation: &Observation, step: &Step, rank: usize, alone: &Alone) -> Vec<Ran> {
    let tasks = observation.plan.tasks.iter().zip(kinds(observation)).enumerate();
    let ran = |(number, (task, kind)): (usize, (&Task, Kind))| {
        let lane = observation.plan.lanes.get(task.lane.index())?.kind;
        let (begin, end) = step.span(rank, number, task.op.is_collective());
        let alone = alone.time(&kind)?;
        Some(Ran { side: Side::of(lane), lane, begin: begin as f64, end: end as f64, alone })
    };
    tasks.filter_map(ran).collect()
}

/// The factor on tasks of lane `own` beside lane `other`.
pub(super) fn factor(runs: &[(Observation, Alone)], delays: &Delays, own: Side, other: Side) -> Figure {
    let noise = (3.0 * delays.mean.value).clamp(LEAST_NOISE, MOST_NOISE);
    let factors = |most_of_it: f64| {
        let mut factors = Vec::new();
        for (observation, alone) in runs {
            for step in &observation.steps {
                for rank in 0..step.ranks.len() {
                    let all = ran(observation, step, rank, alone);
                    let own = all.iter().filter(|task| task.side == own && task.alone > 0.0);
                    factors.extend(own.filter_map(|task| beside_one(task, &all, other, noise, most_of_it)));
                }
            }
        }
        factors
    };
    let found = MOST_OF_IT.into_iter().map(factors).find(|factors| !factors.is_empty());
    summary(found.unwrap_or_default(), "tasks beside the other lane")
}

/// By how much a task was slowed by a lane of kind `other`, if it says.
fn beside_one(task: &Ran, all: &[Ran], other: Side, noise: f64, most_of_it: f64) -> Option<f64> {
    let (mut beside, mut elsewhere) = (0.0, 0.0);
    let mut partner: Option<(f64, &Ran)> = None;
    for one in all.iter().filter(|one| one.lane != task.lane) {
        let together = task.beside(one);
        if one.side != other {
            elsewhere += together;
            continue;
        }
        beside += together;
        if partner.is_none_or(|(most, _)| together > most) {
            partner = Some((together, one));
        }
    }
    let (most, partner) = partner?;
    let says =
        beside >= LEAST * task.taken() && elsewhere <= MOST_ELSE * beside && most >= most_of_it * beside;
    let not_charged = partner.is_slowed(noise) && !task.is_slowed(noise);
    task.factor(beside).filter(|_| says && !not_charged)
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
            factors.extend(slowdown(beside, work));
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
        _ => Figure::new(1.0, format!("not seen: no {of_what} that were slowed, or that nobody else slowed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran([begin, end]: [f64; 2], alone: f64) -> Ran {
        Ran {
            side: Side::Collective,
            lane: LaneKind::Communicator(warpweft_base::id::CommId::new(0)),
            begin,
            end,
            alone,
        }
    }

    #[test]
    fn a_task_of_which_nothing_was_done_says_nothing_about_a_factor() {
        // Half of its work took three quarters of its time.
        assert_eq!(ran([0.0, 200.0], 100.0).factor(150.0), Some(3.0));
        // It waited: what it takes alone is over outside of the time beside the other lane.
        assert_eq!(ran([0.0, 1000.0], 100.0).factor(900.0), None);
        assert_eq!(ran([0.0, 1000.0], 100.0).factor(950.0), Some(19.0));
        assert_eq!((slowdown(0.0, 0.0), slowdown(10.0, -5.0)), (None, None));
    }

    #[test]
    fn a_figure_that_no_sample_is_left_for_is_not_seen() {
        let figure = summary(Vec::new(), "tasks beside the other lane");
        assert!(figure.value == 1.0 && figure.how.starts_with("not seen"), "{figure:?}");
    }
}
