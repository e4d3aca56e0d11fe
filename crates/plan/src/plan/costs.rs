//! The planner's cost model: the price of every task, as plain data.
//!
//! Law: costs come from a machine's numbers ([`Prices`]), and for tasks that were measured from what was
//! measured. They name no rank and are given alike to all ranks, so that all of them still make one plan
//! (PL-1). Planning reads no clock.

use std::collections::BTreeMap;

use crate::cluster::{Cluster, Contention, Prices, Reach, Work};
use crate::model::Group;
use crate::op::{AllGather, Assemble, Dequantize, Op, Transpose};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_base::median::median;

/// A kind of work that takes the same time wherever it stands: op, subject, bytes.
type Kind = (&'static str, String, usize);

/// What a task is made of, with the share of its time that each kind takes. What is gathered, or derived of it, is
/// of single weights, by the bytes of each, because plans join them differently. Any other task is one kind.
/// `None` for one that names what there is not.
fn kinds(work: &Work<'_>, op: &Op, subject: &str, wire_bytes: usize) -> Option<Vec<(Kind, f64)>> {
    let parts: Vec<(WeightId, SlotId)> = match op {
        Op::AllGather(AllGather { parts, .. }) | Op::Assemble(Assemble { parts }) => {
            parts.iter().map(|part| (part.weight, part.to)).collect()
        }
        Op::Transpose(Transpose { parts }) => parts.iter().map(|part| (part.weight, part.to)).collect(),
        Op::Dequantize(Dequantize { parts }) => parts.iter().map(|part| (part.weight, part.to)).collect(),
        _ => return Some(vec![((op.name(), subject.to_owned(), wire_bytes), 1.0)]),
    };
    let kind = |(weight, to): &(WeightId, SlotId)| {
        let name = &work.weights.layouts.get(weight.index())?.name;
        Some((op.name(), name.clone(), work.slots.get(to.index())?.region.bytes))
    };
    let kinds: Vec<Kind> = parts.iter().map(kind).collect::<Option<_>>()?;
    let all: f64 = kinds.iter().map(|(.., bytes)| *bytes as f64).sum();
    let share = |(.., bytes): &Kind| if all > 0.0 { *bytes as f64 / all } else { 0.0 };
    let shares: Vec<f64> = kinds.iter().map(share).collect();
    Some(kinds.into_iter().zip(shares).collect())
}

/// Measured durations of a plan's tasks. Work of one op, subject and size shares one: the median.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    nanoseconds: BTreeMap<Kind, f64>,
    /// Calls, and nothing else.
    calls_alone: bool,
}

impl Measured {
    /// From one duration for every task of `plan`, in nanoseconds: medians over steps, agreed by the ranks.
    /// Tasks without one are left out.
    #[must_use]
    pub fn new(plan: &super::StepPlan, nanoseconds: &[u64]) -> Self {
        Self::of(plan, nanoseconds, |_| true)
    }

    /// The same of calls alone: what no machine's numbers know, because closures are the user's.
    #[must_use]
    pub fn of_calls(plan: &super::StepPlan, nanoseconds: &[u64]) -> Self {
        let calls = Self::of(plan, nanoseconds, |op| matches!(op, Op::Compute(_)));
        Self { calls_alone: true, ..calls }
    }

    fn of(plan: &super::StepPlan, nanoseconds: &[u64], wanted: impl Fn(&Op) -> bool) -> Self {
        let mut all: BTreeMap<Kind, Vec<f64>> = BTreeMap::new();
        let work = Work { calls: &plan.calls, slots: &plan.arena.slots, weights: &plan.weights };
        for (task, time) in plan.tasks.iter().zip(nanoseconds).filter(|(task, _)| wanted(&task.op)) {
            let kinds = kinds(&work, &task.op, &task.subject, task.wire_bytes);
            for (kind, share) in kinds.into_iter().flatten() {
                all.entry(kind).or_default().push(*time as f64 * share);
            }
        }
        let middle = |(kind, times)| Some((kind, median(times)?));
        Self { nanoseconds: all.into_iter().filter_map(middle).collect(), calls_alone: false }
    }
}

/// What tasks take, and what lanes take from each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    prices: Prices,
    measured: Measured,
    replayed: bool,
}

impl Costs {
    /// Prices of a machine. `replayed`: steps are captured once and replayed, so that the host launches steps
    /// and not tasks.
    #[must_use]
    pub fn new(prices: Prices, replayed: bool) -> Self {
        Self { prices, measured: Measured::default(), replayed }
    }

    /// The same with measured durations in place of prices, where there are any. They contain what lanes took
    /// from each other, so contention is not charged on top of what was measured.
    #[must_use]
    pub fn with_measured(self, measured: Measured) -> Self {
        Self { measured, ..self }
    }

    /// Nanoseconds of a task; 0 for one that names what there is not, which no plan that was verified does.
    pub(super) fn of(&self, work: &Work<'_>, op: &Op, subject: &str, wire_bytes: usize) -> f64 {
        let measured = || {
            let of = |(kind, _)| self.measured.nanoseconds.get(&kind);
            kinds(work, op, subject, wire_bytes)?.into_iter().map(of).sum::<Option<f64>>()
        };
        let known = if self.measured.nanoseconds.is_empty() { None } else { measured() };
        known.or_else(|| self.prices.of(work, op)).unwrap_or(0.0)
    }

    /// What lanes take from each other.
    pub(super) fn contention(&self) -> Contention {
        let declared = self.prices.cluster().contention;
        match (self.measured.nanoseconds.is_empty(), self.measured.calls_alone) {
            (true, _) => declared,
            (false, true) => {
                Contention { compute_beside_collective: 1.0, compute_beside_quantize: 1.0, ..declared }
            }
            (false, false) => Contention::default(),
        }
    }

    /// Which links an op takes; `None` for one that is no collective.
    pub(super) fn reach(&self, op: &Op) -> Option<Reach> {
        self.prices.reach(op)
    }

    /// Does an op want a link that gathers want?
    pub(super) fn meets_gathers(&self, op: &Op) -> bool {
        let gathers =
            [Group::Shard, Group::Replica, Group::ExpertShard].map(|group| self.prices.reach_of(group));
        self.reach(op).is_some_and(|reach| gathers.iter().any(|gather| reach.meets(*gather)))
    }

    /// Do collectives of two communicators that take the same links share their bytes? So they do where each of two
    /// takes at least twice as long.
    pub(super) fn one_link(&self) -> bool {
        self.contention().collective_beside_collective >= 2.0
    }

    /// Do they, as far as a number tells that was measured and is off by a few percent?
    pub(super) fn nearly_one_link(&self) -> bool {
        self.prices.cluster().contention.collective_beside_collective >= 1.9
    }

    /// The machine that these are the costs of.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        self.prices.cluster()
    }

    /// Nanoseconds of the host for every task, and for the step.
    pub(super) fn host(&self) -> (u64, u64) {
        let gpu = &self.prices.cluster().gpu;
        let nanoseconds = |microseconds: f64| (microseconds * 1e3).round() as u64;
        match self.replayed {
            true => (0, nanoseconds(gpu.replay_us)),
            false => (nanoseconds(gpu.launch_us), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::cluster::PRESETS;
    use crate::model::Mesh;

    #[test]
    fn contention_is_charged_for_what_was_not_measured_alone() {
        let declared = Contention {
            compute_beside_collective: 1.1,
            collective_beside_compute: 1.2,
            collective_beside_collective: 1.95,
            compute_beside_quantize: 1.3,
            quantize_beside_compute: 1.4,
        };
        let mut cluster: crate::cluster::Cluster = toml::from_str(PRESETS[0].1).unwrap();
        cluster.contention = declared;
        let measured = |calls_alone| {
            let kind = ("compute", "read".to_owned(), 0);
            Measured { nanoseconds: BTreeMap::from([(kind, 1.0)]), calls_alone }
        };
        let costs = Costs::new(Prices::new(&cluster, Mesh::new(2).unwrap()).unwrap(), false);
        assert_eq!(costs.contention(), declared);
        let all = costs.clone().with_measured(measured(false));
        assert_eq!(all.contention(), Contention::default());
        let calls = costs.with_measured(measured(true));
        let expected =
            Contention { compute_beside_collective: 1.0, compute_beside_quantize: 1.0, ..declared };
        assert_eq!(calls.contention(), expected);
        // 2, give or take; and one link it is whatever else was measured.
        assert!(calls.nearly_one_link() && all.nearly_one_link() && !calls.one_link());
    }
}
