//! Live tuning: a session chooses its plan by the time of its first steps.
//!
//! Laws:
//! - **TU-6** a trial is made of real steps. Plans of one program that group reductions alike give equal
//!   bits, unless `reduce = "nccl"` leaves the order of sums to NCCL; so a session that tunes computes what
//!   one that does not computes, and no step is run twice or thrown away.
//! - **TU-7** the arena is reserved once, for the largest plan that can be tried (TU-5) and that the budget
//!   allows; plans made of measured durations are made within it. So what is resident does not move, and no trial
//!   takes memory that was not there before the first step. Transient slots lie as each trial's plan has them.
//! - **TU-8** all ranks of all processes try the same plans in the same steps: decisions follow from times
//!   that all ranks agreed on and from outcomes that all get (EX-2), and plans are compared before they
//!   are bound (PL-1).
//! - **TU-9** a step that failed or was skipped is no measurement, and neither is the first of a trial, which
//!   warms up: but each is one of the trial's steps. A trial of which no step was measured is tried once
//!   more. One that cannot be bound on a rank ends the session on all ranks, with its cause. What its caller
//!   gets is what it would get without a trial.
//! - **TU-10** after the last trial the choice is bound anew, to be captured if steps are, and nothing here
//!   is touched again. Until then every step is issued: what issuing costs the host is in the times that are
//!   compared, though steps after the trials may be captured.
//!
//! Tuned is the first program that updates weights, or the first of all; the others keep the plan of the
//! configuration. What to try next is [`crate::tune`]'s to say; this module makes the plans and counts the
//! steps.

mod text;
mod trial;
mod trial_plans;

use std::sync::Arc;

use self::trial::Trial;
use self::trial_plans::TrialPlans;
use super::SessionError;
use super::start::plans::Plans;
use crate::config::{Config, Tune};
use crate::exec::Adoption;
use crate::tune::{Candidate, Choice, Decision, Limits, TrialOutcome, Tuner, Verdict};
use warpweft_base::id::ProgramId;
use warpweft_plan::model::StepProgram;
use warpweft_plan::plan::{Costs, StepPlan};

/// Live tuning of a session: its trials, and its choice. Its text is a table of the trials with the configuration to
/// paste.
///
/// Each trial has its own places for gathered planes, gradients and transient buffers: a closure that keeps
/// addresses from step to step may do so once [`Tuning::is_frozen`].
#[derive(Debug)]
pub struct Tuning {
    program: ProgramId,
    tuner: Tuner,
    plans: TrialPlans,
    stage: Stage,
    /// The plan of the tuner's choice; the configured one before there is any.
    chosen: Arc<StepPlan>,
    /// What is printed to paste.
    settings: Config,
}

/// Where the session is.
#[derive(Debug)]
enum Stage {
    /// Between two trials: the next step of the program begins this one.
    Ready(Trial),
    /// In the middle of one.
    Running(Trial),
    /// The next step of the program begins with the choice.
    Settled,
    /// The choice is bound for good.
    Frozen,
}

impl Tuning {
    /// What the configuration requests, if it requests trials.
    pub(super) fn new(
        config: &Config,
        programs: &[StepProgram],
        plans: &Plans,
        costs: Option<&Costs>,
    ) -> Result<Option<Self>, SessionError> {
        let Some(costs) = costs.filter(|_| config.tune.steps > 0) else { return Ok(None) };
        if programs.iter().any(StepProgram::is_accumulating) {
            return Err(SessionError::Unsupported {
                key: "tune.steps",
                value: "above 0",
                reason: "trials are of whole steps, and a program accumulates gradients; tune a session without `StepProgram::accumulating`, and set what it chose",
            });
        }
        let program = programs
            .iter()
            .position(StepProgram::updates_weights)
            .map_or_else(ProgramId::default, ProgramId::at);
        let (declared, configured) = (programs.get(program.index()), plans.programs.get(program.index()));
        let (Some(declared), Some(configured)) = (declared, configured) else {
            return Ok(None);
        };
        let policy = plans.planner.policy;
        let limits = Limits {
            budget: policy.budget,
            steps: config.tune.steps,
            per_trial: Tune::PER_TRIAL,
            ..Limits::default()
        };
        let mut tuning = Self {
            program,
            tuner: Tuner::new(policy.prefetch, limits)?,
            plans: TrialPlans::new(declared, configured, &plans.planner, costs, limits)?,
            stage: Stage::Settled,
            chosen: Arc::clone(configured),
            settings: config.clone(),
        };
        tuning.advance();
        Ok(Some(tuning))
    }

    /// The plans for which there must be room.
    pub(super) fn foreseen(&self) -> Vec<Arc<StepPlan>> {
        self.plans.foreseen()
    }

    /// The plan that the coming step of `program` begins with, if it is another one than that of the step before.
    pub(super) fn before_step(&mut self, program: ProgramId) -> Option<Adoption> {
        if program != self.program {
            return None;
        }
        match std::mem::replace(&mut self.stage, Stage::Frozen) {
            Stage::Ready(trial) => {
                let plan = Arc::clone(trial.plan());
                self.stage = Stage::Running(trial);
                Some(Adoption { plan, trial: true })
            }
            Stage::Settled => Some(Adoption { plan: Arc::clone(&self.chosen), trial: false }),
            stage => {
                self.stage = stage;
                None
            }
        }
    }

    /// Is the coming step of `program` one of a trial?
    pub(super) fn measures(&self, program: ProgramId) -> bool {
        program == self.program && matches!(self.stage, Stage::Running(_))
    }

    /// A step of `program` ended. `times` are what all ranks agreed on, the step first; none of a step that
    /// is no measurement.
    pub(super) fn after_step(&mut self, program: ProgramId, failed: bool, times: Option<&[u64]>) {
        let Stage::Running(trial) = &mut self.stage else { return };
        if program != self.program || !trial.count(failed, times) {
            return;
        }
        let plan = Arc::clone(trial.plan());
        let (steps, tasks) = trial.measured();
        self.tuner.report(TrialOutcome::Measured { steps, bytes: plan.bounds.transient_bytes });
        let is_chosen = |decision: &Decision| matches!(decision.verdict, Verdict::Chosen { .. });
        if self.tuner.log().last().is_some_and(is_chosen) {
            self.plans.learn(&plan, &tasks);
            self.chosen = plan;
        }
        self.advance();
    }

    /// On to the next trial that has a plan, or to the end.
    fn advance(&mut self) {
        self.stage = Stage::Settled;
        while let Some(candidate) = self.tuner.next_trial() {
            match self.plans.plan(candidate) {
                Ok(plan) => {
                    if self.tuner.planned(plan.bounds.transient_bytes) {
                        self.stage = Stage::Ready(Trial::new(candidate, plan));
                        return;
                    }
                }
                Err(refusal) => {
                    let fits = refusal.needed().is_none_or(|needed| self.tuner.planned(needed));
                    if fits {
                        self.tuner.report(TrialOutcome::Refused { reason: refusal.to_string() });
                    }
                }
            }
        }
        self.plans.clear();
    }

    /// The name of the program that is tuned.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.chosen.name
    }

    /// The candidate of the trial that is under way, if one is.
    #[must_use]
    pub const fn trial(&self) -> Option<Candidate> {
        match &self.stage {
            Stage::Running(trial) => Some(trial.candidate()),
            Stage::Ready(_) | Stage::Settled | Stage::Frozen => None,
        }
    }

    /// Is the choice made and bound? Then plan and addresses stay as they are.
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        matches!(self.stage, Stage::Frozen)
    }

    /// The best so far, if any trial was measured.
    #[must_use]
    pub const fn choice(&self) -> Option<Choice> {
        self.tuner.choice()
    }

    /// Every trial with what was made of it, in order.
    #[must_use]
    pub fn log(&self) -> &[Decision] {
        self.tuner.log()
    }
}
