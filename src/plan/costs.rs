//! What the planner counts with: the price of every task, as plain data.
//!
//! Law: costs come from a machine's numbers ([`Prices`]), and for tasks that were measured from what was
//! measured. They name no rank and are given alike to all ranks, so that all of them still make one plan
//! (PL-1). Planning reads no clock.

use std::collections::BTreeMap;

use crate::cluster::{Contention, Prices, Work};
use crate::op::Op;
use crate::trace::median;

/// A kind of task that takes the same time wherever it stands: op, subject, bytes received.
type Kind = (&'static str, String, usize);

/// Measured durations of a plan's tasks. Tasks of one op, subject and size share one: the median.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    nanoseconds: BTreeMap<Kind, f64>,
}

impl Measured {
    /// From one duration for every task of `plan`, in nanoseconds: medians over steps, agreed by the ranks.
    /// Tasks without one are left out.
    #[must_use]
    pub fn new(plan: &super::StepPlan, nanoseconds: &[u64]) -> Self {
        Self::of(plan, nanoseconds, |_| true)
    }

    /// The same of calls alone: what no machine's numbers know, because closures are the embedder's.
    #[must_use]
    pub fn of_calls(plan: &super::StepPlan, nanoseconds: &[u64]) -> Self {
        Self::of(plan, nanoseconds, |op| matches!(op, Op::Compute { .. }))
    }

    fn of(plan: &super::StepPlan, nanoseconds: &[u64], wanted: impl Fn(&Op) -> bool) -> Self {
        let mut all: BTreeMap<Kind, Vec<u64>> = BTreeMap::new();
        for (task, time) in plan.tasks.iter().zip(nanoseconds).filter(|(task, _)| wanted(&task.op)) {
            let kind = (task.op.name(), task.subject.clone(), task.wire_bytes);
            all.entry(kind).or_default().push(*time);
        }
        let middle = |(kind, times)| Some((kind, median(times)? as f64));
        Self { nanoseconds: all.into_iter().filter_map(middle).collect() }
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
    /// Prices of a machine. `replayed`: steps are recorded once and replayed, so that the host launches steps
    /// and not tasks.
    #[must_use]
    pub fn new(prices: Prices, replayed: bool) -> Self {
        Self { prices, measured: Measured::default(), replayed }
    }

    /// The same with measured durations in place of prices, where there are any. They contain what lanes took
    /// from each other, so contention is not charged on top.
    #[must_use]
    pub fn with_measured(self, measured: Measured) -> Self {
        Self { measured, ..self }
    }

    /// Nanoseconds of a task; 0 for one that names what there is not, which no plan that was verified does.
    pub(super) fn of(&self, work: &Work<'_>, op: &Op, subject: &str, wire_bytes: usize) -> f64 {
        let measured = || {
            let kind = (op.name(), subject.to_owned(), wire_bytes);
            self.measured.nanoseconds.get(&kind).copied()
        };
        let known = if self.measured.nanoseconds.is_empty() { None } else { measured() };
        known.or_else(|| self.prices.of(work, op)).unwrap_or(0.0)
    }

    /// What lanes take from each other.
    pub(super) fn contention(&self) -> Contention {
        match self.measured.nanoseconds.is_empty() {
            true => self.prices.cluster().contention,
            false => Contention::default(),
        }
    }

    /// Do reductions and gathers on two communicators want one link? So they do where each of two takes at
    /// least twice as long.
    pub(super) fn one_link(&self) -> bool {
        self.prices.cluster().contention.collective_beside_collective >= 2.0
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
