//! The plans of trials.
//!
//! Law: what needs no measurement is planned before the session reserves memory, with the configured budget,
//! so it is what a session would run that has it in its configuration; what does is planned within the room
//! that was reserved (TU-7).

use std::sync::Arc;

use super::super::SessionError;
use super::super::start::plans::Planner;
use crate::config::ByteSize;
use crate::tune::{Candidate, Limits, foreseen};
use warpweft_plan::model::StepProgram;
use warpweft_plan::plan::{Costs, GatherStart, Measured, PlanError, Policy, StepPlan};

/// What plans are made of.
#[derive(Debug)]
pub(super) struct TrialPlans {
    program: StepProgram,
    planner: Planner,
    costs: Costs,
    /// Those that were planned up front.
    planned: Vec<(GatherStart, Result<Arc<StepPlan>, PlanError>)>,
    /// Most transient bytes of them.
    room: usize,
    /// What tasks took under the choice.
    measured: Option<Measured>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("its plan needs {} and {} are reserved for trials", ByteSize::of(*.needed).in_full(), ByteSize::of(*.room).in_full())]
    Room { needed: usize, room: usize },
    #[error("the backend times no tasks, so there is nothing to plan by")]
    Untimed,
}

impl Refusal {
    /// The transient bytes that there were not, if it is for want of them.
    pub(super) const fn needed(&self) -> Option<usize> {
        match self {
            Self::Plan(PlanError::Budget { needed, .. }) | Self::Room { needed, .. } => Some(*needed),
            Self::Plan(_) | Self::Untimed => None,
        }
    }
}

impl TrialPlans {
    /// Plans what can be tried.
    pub(super) fn new(
        program: &StepProgram,
        configured: &Arc<StepPlan>,
        planner: &Planner,
        costs: &Costs,
        limits: Limits,
    ) -> Result<Self, SessionError> {
        let policy = planner.policy;
        let mut planned = vec![(policy.prefetch, Ok(Arc::clone(configured)))];
        foreseen(policy.prefetch, limits, |prefetch| {
            if let Some((_, known)) = planned.iter().find(|(known, _)| *known == prefetch) {
                return known.is_ok();
            }
            let plan = planner.plan(program, &Policy { prefetch, ..policy }, Some(costs));
            let fits = plan.is_ok();
            planned.push((prefetch, plan));
            fits
        })?;
        let plans = planned.iter().filter_map(|(_, plan)| plan.as_ref().ok());
        let room = plans.map(|plan| plan.bounds.transient_bytes).max().unwrap_or(0);
        let (program, planner, costs) = (program.clone(), planner.clone(), costs.clone());
        Ok(Self { program, planner, costs, planned, room, measured: None })
    }

    /// Those that can be run of what was planned up front.
    pub(super) fn foreseen(&self) -> Vec<Arc<StepPlan>> {
        self.planned.iter().filter_map(|(_, plan)| plan.as_ref().ok()).map(Arc::clone).collect()
    }

    /// The plan of a candidate.
    pub(super) fn plan(&self, candidate: Candidate) -> Result<Arc<StepPlan>, Refusal> {
        let Candidate { prefetch, by_measurement, .. } = candidate;
        let known = self.planned.iter().find(|(known, _)| *known == prefetch && !by_measurement);
        if let Some((_, plan)) = known {
            return Ok(plan.clone()?);
        }
        let policy = Policy { prefetch, budget: Some(self.room), ..self.planner.policy };
        let mut costs = self.costs.clone();
        if by_measurement {
            costs = costs.with_measured(self.measured.clone().ok_or(Refusal::Untimed)?);
        }
        // The room is no budget that anybody could raise.
        self.planner.plan(&self.program, &policy, Some(&costs)).map_err(|error| match error {
            PlanError::Budget { needed, .. } => Refusal::Room { needed, room: self.room },
            other => Refusal::Plan(other),
        })
    }

    /// What the tasks of `plan`, the choice, took; nothing if they were not timed.
    pub(super) fn learn(&mut self, plan: &StepPlan, tasks: &[u64]) {
        self.measured = (tasks.len() == plan.tasks.len()).then(|| Measured::new(plan, tasks));
    }

    /// Gives back the plans: nothing is tried any more.
    pub(super) fn clear(&mut self) {
        self.planned = Vec::new();
        self.measured = None;
    }
}
