//! The forecast of a step's time, beside the measured time.
//!
//! Law: the prediction is the plan's forecast, with the prices of the cluster file for everything the library
//! does. Calls are the example's own, and no cluster knows what they take: theirs are the medians of a few
//! early steps, of all ranks of this process, which are then left out of what is compared. They hold what
//! other lanes took from them, so contention is not charged on top. A cluster that cannot hold the ranks is
//! refused before they train; after that a forecast that cannot be made is a line, and takes no result away.
//!
//! What the planner counts with stands in crates beneath `warpweft`, which promise nothing.

use std::error::Error;

use warpweft::cluster::{Cluster, named};
use warpweft::config::Config as Settings;
use warpweft::session::{Session, StepReport};
use warpweft_plan::plan::{Costs, Measured};
use warpweft_session::session::costs_of;

/// Steps that are left out altogether: kernels are cold and captures made.
const COLD: usize = 2;

/// Steps after them of which calls are measured.
const WATCHED: usize = 8;

/// The cluster called `name`.
pub(crate) fn cluster(name: &str) -> Result<Cluster, Box<dyn Error>> {
    Ok(named(name).map_err(|error| format!("--cluster: {error}"))?)
}

/// Collects the times of one run.
pub(crate) struct Watch {
    /// The cluster's name.
    cluster: String,
    /// What tasks take there.
    costs: Costs,
    /// The plan that is watched: a session that tunes itself changes it.
    plan: Option<u64>,
    steps: usize,
    /// Per task, of the watched steps and all ranks.
    tasks: Vec<Vec<u64>>,
    /// Of the steps after those.
    durations: Vec<f64>,
}

impl Watch {
    /// For `ranks` ranks on the cluster called `name`.
    ///
    /// # Errors
    /// There is no such cluster, or it cannot hold the ranks.
    pub(crate) fn new(name: &str, settings: &Settings, ranks: u32) -> Result<Self, Box<dyn Error>> {
        let cluster = cluster(name)?;
        let costs = costs_of(settings, &cluster, ranks).map_err(|error| format!("--cluster: {error}"))?;
        let cluster = cluster.name;
        Ok(Self { cluster, costs, plan: None, steps: 0, tasks: Vec::new(), durations: Vec::new() })
    }

    /// A step of `train` has ended.
    pub(crate) fn add(&mut self, session: &Session, report: &StepReport) {
        let plan = session.plan("train").ok().map(|plan| plan.fingerprint());
        if plan != self.plan {
            (self.plan, self.steps) = (plan, 0);
            self.tasks.clear();
            self.durations.clear();
        }
        self.steps += 1;
        if self.steps <= COLD {
            return;
        }
        if self.steps > COLD + WATCHED {
            self.durations.push(report.duration.as_secs_f64());
            return;
        }
        for rank in session.own_ranks() {
            let intervals = session.intervals(rank).unwrap_or_default();
            self.tasks.resize(intervals.len().max(self.tasks.len()), Vec::new());
            let times = intervals.iter().map(|interval| interval.end - interval.joined);
            self.tasks.iter_mut().zip(times).for_each(|(task, time)| task.push(time));
        }
    }

    /// One line: predicted, measured, and how far they are apart; or why there is no forecast.
    pub(crate) fn conclude(mut self, session: &Session) -> String {
        let plan = match session.plan("train") {
            Ok(plan) => plan,
            Err(error) => return format!("not possible: {error}"),
        };
        // First: of too few steps no device has the times of calls.
        if self.durations.is_empty() {
            return format!("not of so few steps; take more than {}", COLD + WATCHED);
        }
        if self.tasks.len() != plan.tasks.len() {
            return "not without the times of calls, which GPUs measure for a trace: --trace FILE".to_owned();
        }
        let middle = |times: &mut Vec<u64>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or(0)
        };
        let times: Vec<u64> = self.tasks.iter_mut().map(middle).collect();
        let forecast = plan.forecast(&self.costs.with_measured(Measured::of_calls(plan, &times)));
        self.durations.sort_by(f64::total_cmp);
        let (predicted, measured) =
            (forecast.step as f64 * 1e-6, self.durations[self.durations.len() / 2] * 1e3);
        let error = 100.0 * (predicted / measured - 1.0);
        format!(
            "predicted {predicted:.1} ms on `{}`, measured {measured:.1} ms ({error:+.1} %)",
            self.cluster
        )
    }
}
