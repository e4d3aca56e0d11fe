//! Plans a session's programs, once; those of trials over the same resident layout.
//!
//! Law: a program has one plan, and one more for each part of an accumulation if it accumulates. Plans name no
//! rank (PL-1), so one set serves all ranks of a process; everything a session begins with is planned and proved
//! before the first thread starts. Ranks still compare fingerprints with each other, because those of other
//! processes make their own.

use std::sync::Arc;

use super::costs;
use crate::config::{Capture, Config};
use crate::exec::{Handover, StepTimes};
use crate::session::SessionError;
use warpweft_plan::layout::{StateLayout, Weights};
use warpweft_plan::model::{Accumulation, BufferSpec, Mesh, Role, StepProgram};
use warpweft_plan::plan::{Costs, PlanError, Policy, ResidentLayout, StepPlan};

/// One plan per program, and the one that quantizes masters.
#[derive(Debug)]
pub(in crate::session) struct Plans {
    pub(in crate::session) prologue: Arc<StepPlan>,
    pub(in crate::session) programs: Vec<Arc<StepPlan>>,
    /// Of every program that accumulates in turn, those of the parts of a sum.
    pub(in crate::session) sum_plans: Vec<Arc<StepPlan>>,
    pub(in crate::session) planner: Planner,
}

/// What all plans of a session are made of.
#[derive(Clone, Debug)]
pub(in crate::session) struct Planner {
    weights: Weights,
    resident: ResidentLayout,
    /// As configured.
    pub(in crate::session) policy: Policy,
}

impl Planner {
    /// A planner of programs over one model, on a mesh.
    pub(in crate::session) fn new(
        programs: &[StepProgram],
        config: &Config,
        mesh: Mesh,
    ) -> Result<Self, SessionError> {
        let Some(first) = programs.first() else {
            return Err(SessionError::Start { reason: "add at least one program".into() });
        };
        let mut policy = Policy::from(config);
        let collectives = programs.iter().flat_map(StepProgram::calls).any(|call| call.collective.is_some());
        if collectives && config.communicators.is_none() {
            policy.communicators = *Config::COMMUNICATORS.end();
        }
        let weights = Weights::new(first.model().weights(), mesh).with_state(StateLayout::from(config));
        let declared: Vec<&StepProgram> = programs.iter().collect();
        let resident = ResidentLayout::new(&weights, &declared)?;
        Ok(Self { weights, resident, policy })
    }

    /// A plan of one of the session's programs.
    pub(in crate::session) fn plan(
        &self,
        program: &StepProgram,
        policy: &Policy,
        costs: Option<&Costs>,
    ) -> Result<Arc<StepPlan>, PlanError> {
        let Self { weights, resident, .. } = self;
        match costs {
            Some(costs) => StepPlan::timed(program, weights, resident, policy, costs).map(Arc::new),
            None => StepPlan::within(program, weights, resident, policy).map(Arc::new),
        }
    }
}

impl Plans {
    /// Plans `programs` over one resident layout.
    pub(in crate::session) fn new(
        programs: &[StepProgram],
        config: &Config,
        mesh: Mesh,
    ) -> Result<Self, SessionError> {
        let costs = costs::configured(config, mesh.ranks())?;
        Self::with_costs(programs, config, mesh, costs.as_ref())
    }

    /// Plans `programs` over one resident layout, with costs to count with.
    pub(in crate::session) fn with_costs(
        programs: &[StepProgram],
        config: &Config,
        mesh: Mesh,
        costs: Option<&Costs>,
    ) -> Result<Self, SessionError> {
        let is_twice = |program: &&StepProgram| {
            programs.iter().filter(|other| other.name() == program.name()).count() > 1
        };
        if let Some(program) = programs.iter().find(is_twice) {
            let reason = format!("two programs are named `{}`", program.name());
            return Err(SessionError::Start { reason });
        }
        programs.iter().try_for_each(|program| check_rules(program, config))?;
        check_capture(programs, config)?;
        let planner = Planner::new(programs, config, mesh)?;
        let Planner { weights, resident, policy } = &planner;
        let prologue = StepPlan::prologue(weights, resident, policy).map(Arc::new);
        let plan = |program| planner.plan(program, policy, costs);
        let accumulating = programs.iter().filter(|program| program.is_accumulating());
        let parts = accumulating.flat_map(|program| Accumulation::PARTS.map(|part| program.part(part)));
        let sum_plans: Vec<_> = parts.map(|part| planner.plan(&part, policy, costs)).collect();
        let programs: Vec<_> = programs.iter().map(plan).collect();
        if let Some(error) = refusal(programs.iter().chain(&sum_plans), &prologue) {
            return Err(error.into());
        }
        let programs = programs.into_iter().collect::<Result<_, _>>()?;
        let sum_plans = sum_plans.into_iter().collect::<Result<_, _>>()?;
        Ok(Self { prologue: prologue?, programs, sum_plans, planner })
    }

    /// Every plan of a program or of a part of one, in the order of their numbers.
    pub(in crate::session) fn all(&self) -> impl Iterator<Item = &Arc<StepPlan>> {
        self.programs.iter().chain(&self.sum_plans)
    }

    /// A handover with room for everything a step of any program stages.
    pub(in crate::session) fn handover(&self) -> Result<Handover, SessionError> {
        let is_staged = |role| matches!(role, Role::Input | Role::Output);
        let staged = self.programs.iter().map(|plan| host_buffers(plan, is_staged));
        let longest = self.all().map(|plan| plan.tasks.len()).max().unwrap_or(0);
        Ok(Handover {
            staged: staged.collect::<Result<_, _>>()?,
            times: StepTimes { intervals: Vec::with_capacity(longest), ..StepTimes::default() },
            ..Handover::default()
        })
    }
}

/// Why a session cannot start, if not all plans could be made. Of several that do not fit the budget the one that
/// needs most is named: whoever raises the budget to that has room for all.
fn refusal<'plans>(
    programs: impl Iterator<Item = &'plans Result<Arc<StepPlan>, PlanError>> + Clone,
    prologue: &'plans Result<Arc<StepPlan>, PlanError>,
) -> Option<PlanError> {
    let refused = || [prologue].into_iter().chain(programs.clone()).filter_map(|plan| plan.as_ref().err());
    let needed = |error: &&PlanError| match error {
        PlanError::Budget { needed, .. } => Some(*needed),
        _ => None,
    };
    let other = refused().find(|error| needed(error).is_none());
    other.or_else(|| refused().max_by_key(needed)).cloned()
}

/// Programs are declared over a model as the rules of the configuration have it.
fn check_rules(program: &StepProgram, config: &Config) -> Result<(), SessionError> {
    match config.unrefined(program.model())? {
        None => Ok(()),
        Some((weight, rules)) => Err(SessionError::WeightRules { weight, rules }),
    }
}

/// What must be captured whole has no dynamic call.
fn check_capture(programs: &[StepProgram], config: &Config) -> Result<(), SessionError> {
    let dynamic = |program: &StepProgram| {
        let call = program.calls().iter().find(|call| call.dynamic)?;
        Some(SessionError::Dynamic { program: program.name().to_owned(), call: call.name.clone() })
    };
    match programs.iter().find_map(dynamic).filter(|_| config.capture == Capture::Step) {
        None => Ok(()),
        Some(error) => Err(error),
    }
}

/// Host memory for every buffer whose role `wanted` picks, for all micro-batches, zeroed; nothing for the others.
pub(in crate::session) fn host_buffers(
    plan: &StepPlan,
    wanted: impl Fn(Role) -> bool,
) -> Result<Vec<Vec<u8>>, SessionError> {
    let memory = |spec: &BufferSpec| {
        if !wanted(spec.role) {
            return Ok(Vec::new());
        }
        let bytes = spec.bytes().saturating_mul(plan.micro_batches as usize);
        // Requested first, because `vec!` ends the process when there is not that much.
        if Vec::<u8>::new().try_reserve_exact(bytes).is_err() {
            let (program, buffer) = (plan.name.clone(), spec.name.clone());
            return Err(SessionError::HostMemory { program, buffer, bytes });
        }
        Ok(vec![0; bytes])
    };
    plan.buffers.iter().map(memory).collect()
}
