//! Simulation: a program in virtual time, planned and driven as in a session, on a cluster that need not exist.
//!
//! Law: what is simulated is what a session would run before it tunes itself. The plans are made by the same
//! code from the same configuration, one rank's actors issue them over [`warpweft_backend::sim`], and steps are
//! captured and replayed as the configuration says (EX-1). The result depends on program, configuration,
//! cluster and number of ranks alone, never on the machine it was computed on.

pub(super) mod columnwise;

use std::sync::Arc;
use std::time::Duration;

use super::observe::recorder::{add_step, causes};
use super::start::costs::costs_of;
use super::start::plans::Plans;
use super::{CompiledHere, Session, SessionBuilder, SessionError};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::exec::{CaptureMode, Rank, World};
use crate::trace::{Exposure, Nanoseconds, Timeline};
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_backend::sim::{SimSurface, SimWorld};
use warpweft_backend::{Backend, Checked, TaskInterval};
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::layout::LaneKind;
use warpweft_plan::model::{Call, Mesh, StepProgram};
use warpweft_plan::plan::{Costs, StepPlan};

/// The result of simulating a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Simulation {
    /// The plan of the program.
    pub plan: Arc<StepPlan>,
    /// Virtual time of one step, on the slowest rank: the mean over the steps that were measured.
    pub step: Duration,
    /// That of every step that was measured.
    pub steps: Vec<Duration>,
    /// What every task took on rank 0 in the last step, nanoseconds, from the arrival of the last rank on.
    pub durations: Vec<u64>,
    /// Where the time of rank 0's last step went. A collective begins when its last rank arrives; the wait is
    /// skew.
    pub exposure: Exposure,
    /// Time in which each lane of rank 0 ran something in that step.
    pub busy: Vec<(LaneKind, Nanoseconds)>,
    /// That step, from time 0 on. Collectives are drawn from the arrival of their last rank on.
    pub timeline: Timeline,
    /// What was simulated, in words.
    pub device: String,
}

/// Closures for a backend that runs none.
struct NeverCalled;

impl Compute<SimSurface> for NeverCalled {
    fn run(&mut self, _call: &Call, _context: &ComputeContext<'_, SimSurface>) -> Result<(), ComputeError> {
        Ok(())
    }
}

/// The plan a session would run for `program` alone, on `ranks` ranks.
///
/// # Errors
/// [`SessionError::Config`], [`SessionError::Declare`] for no ranks or ranks that `mesh.dp_replicate` does not
/// divide, [`SessionError::WeightRules`] for a model that the configuration's rules were not applied to,
/// [`SessionError::Plan`].
pub fn plan_program(
    program: &StepProgram,
    config: &Config,
    ranks: u32,
) -> Result<Arc<StepPlan>, SessionError> {
    config.validate()?;
    let config = &config.with_usual_replicas(ranks, program.model());
    first(Plans::new(std::slice::from_ref(program), config, config.mesh_of(ranks)?)?)
}

/// The plan that [`simulate_program`] runs: as [`plan_program`], with the costs of `cluster` to count with.
///
/// # Errors
/// As [`plan_program`]; [`SessionError::Backend`] when the ranks do not fit the cluster.
pub fn plan_program_on(
    program: &StepProgram,
    config: &Config,
    cluster: &Cluster,
    ranks: u32,
) -> Result<Arc<StepPlan>, SessionError> {
    config.validate()?;
    let config = &config.with_usual_replicas(ranks, program.model());
    first(plans_on(program, config, cluster, config.mesh_of(ranks)?)?)
}

fn plans_on(
    program: &StepProgram,
    config: &Config,
    cluster: &Cluster,
    mesh: Mesh,
) -> Result<Plans, SessionError> {
    let costs = costs_of(config, cluster, mesh.ranks())?;
    Plans::with_costs(std::slice::from_ref(program), config, mesh, Some(&costs))
}

fn first(plans: Plans) -> Result<Arc<StepPlan>, SessionError> {
    plans.programs.into_iter().next().ok_or_else(|| SessionError::Start { reason: "no program".into() })
}

impl SessionBuilder<SimSurface> {
    /// Starts a session in virtual time, on `ranks` ranks of `cluster`. One rank is driven and stands for all
    /// of them: the session owns rank 0 alone, no closures are called, inputs and masters need no values, and what
    /// it reports of values is zeros. Weights are neither exported, saved nor imported
    /// ([`SessionError::VirtualTime`]). Times are virtual but for [`super::StepReport::duration`] and
    /// [`super::StepReport::issue`]. The planner counts with the same cluster.
    ///
    /// # Errors
    /// [`SessionError::Backend`] when the ranks do not fit the cluster, then as [`SessionBuilder::start`].
    pub async fn start_simulated(self, cluster: &Cluster, ranks: u32) -> Result<Session, SessionError> {
        self.start_simulated_here(cluster, ranks).await
    }

    fn start_simulated_here(self, cluster: &Cluster, ranks: u32) -> CompiledHere<'_, Session> {
        // There are no masters to fill in.
        let mut builder = self.initialize(|_, _| {});
        Box::pin(async move {
            builder.config.prefetch.cluster.clone_from(&cluster.name);
            builder.config.validate()?;
            builder.divide(ranks);
            let mesh = builder.config.mesh_of(ranks)?;
            let costs = costs_of(&builder.config, cluster, ranks)?;
            let backend = SimWorld::new(mesh, cluster.clone(), builder.config.reduce)?.backend()?;
            // The one rank that is driven meets nobody on the host.
            let alone = Rendezvous::of_threads(1, builder.config.deadline());
            let (start, ranks) = builder.of_any(vec![backend]);
            let mut session = start.start_planned(mesh, Some(&costs), Arc::new(alone), ranks).await?;
            session.is_virtual = true;
            session.need_no_inputs();
            Ok(session)
        })
    }
}

impl Session {
    /// Starts building a session in virtual time ([`SessionBuilder::start_simulated`]): it has no closures, because
    /// none would be called.
    pub fn simulated(config: Config) -> SessionBuilder<SimSurface> {
        Self::builder(config, |_| NeverCalled)
    }
}

/// Simulates `steps` steps of `program` (at least one) on `ranks` ranks of `cluster`, after one that is
/// not measured: it casts new masters, and is issued even where steps are captured.
///
/// # Errors
/// As [`plan_program`]; [`SessionError::Backend`] when the ranks do not fit the cluster,
/// [`SessionError::Exec`] when a rank's arena does not fit a GPU.
pub fn simulate_program(
    program: &StepProgram,
    config: &Config,
    cluster: &Cluster,
    ranks: u32,
    steps: u32,
) -> Result<Simulation, SessionError> {
    let config = config.with_usual_replicas(ranks, program.model());
    let costs = costs_of(&config, cluster, ranks)?;
    simulate_program_with(program, &config, cluster, ranks, steps, &costs)
}

/// As [`simulate_program`], with other costs for the planner to count with, such as measured ones. What
/// is simulated is charged as the cluster says.
///
/// # Errors
/// As [`simulate_program`].
pub fn simulate_program_with(
    program: &StepProgram,
    config: &Config,
    cluster: &Cluster,
    ranks: u32,
    steps: u32,
    costs: &Costs,
) -> Result<Simulation, SessionError> {
    simulate_each_step(program, config, cluster, ranks, steps, costs, &mut |_, _| {})
}

/// As [`simulate_program_with`]; `each` gets the duration of every measured step, and when rank 0's tasks ran in it.
///
/// # Errors
/// As [`simulate_program`].
pub fn simulate_each_step(
    program: &StepProgram,
    config: &Config,
    cluster: &Cluster,
    ranks: u32,
    steps: u32,
    costs: &Costs,
    each: &mut dyn FnMut(Duration, &[TaskInterval]),
) -> Result<Simulation, SessionError> {
    config.validate()?;
    let config = &config.with_usual_replicas(ranks, program.model());
    let mesh = config.mesh_of(ranks)?;
    let plans = Plans::with_costs(std::slice::from_ref(program), config, mesh, Some(costs))?;
    let mut handover = plans.handover()?;
    (handover.coming.loss_scale, handover.coming.gradient_scale) = (1.0, 1.0);
    let world = SimWorld::new(mesh, cluster.clone(), config.reduce)?;
    let backend = world.backend()?;
    let device = backend.describe();
    let closures: ComputeFactory<SimSurface> = Arc::new(|_| Ok(Box::new(NeverCalled)));
    // The one rank that is driven meets nobody on the host.
    let alone = Arc::new(World::new(1, config.deadline()));
    let capture = CaptureMode::from(config);
    // As a session wraps it, so that a rank's code is compiled once for it.
    let backend = Checked::when(false, backend);
    let mut rank = Rank::new(backend, alone, plans.prologue, plans.programs.clone(), capture, &closures)?;
    rank.step(ProgramId::new(0), &mut handover)?;
    let begin = world.elapsed();
    let mut ends = vec![begin];
    for _ in 0..steps.max(1) {
        rank.step(ProgramId::new(0), &mut handover)?;
        let end = world.elapsed();
        each(end - ends.last().copied().unwrap_or(begin), &handover.times.intervals);
        ends.push(end);
    }
    let step = (world.elapsed() - begin) / steps.max(1);
    let steps = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let durations = handover.times.intervals.iter().map(|interval| interval.end - interval.joined).collect();
    let Some(plan) = plans.programs.into_iter().next() else {
        return Err(SessionError::Start { reason: "add a program".into() });
    };
    let exposure = handover.times.exposure;
    let busy = busy(&plan, &handover.times.intervals);
    let timeline = timeline(&plan, &device, &handover.times.intervals);
    Ok(Simulation { plan, step, steps, durations, exposure, busy, timeline, device })
}

fn busy(plan: &StepPlan, intervals: &[TaskInterval]) -> Vec<(LaneKind, Nanoseconds)> {
    let time = |lane: &warpweft_plan::layout::Lane| {
        let own = plan.tasks.iter().zip(intervals).filter(|(task, _)| task.lane == lane.id);
        Nanoseconds::new(own.fold(0, |sum, (_, interval)| sum.saturating_add(interval.end - interval.joined)))
    };
    plan.lanes.iter().map(|lane| (lane.kind, time(lane))).collect()
}

fn timeline(plan: &StepPlan, device: &str, intervals: &[TaskInterval]) -> Timeline {
    let origin = intervals.iter().map(|interval| interval.begin).min().unwrap_or(0);
    let from_arrival = |interval: &TaskInterval| TaskInterval { begin: interval.joined, ..*interval };
    let drawable: Vec<TaskInterval> = intervals.iter().map(from_arrival).collect();
    let drawn = "collectives are drawn from the arrival of their last rank on".to_owned();
    let mut timeline = Timeline { notes: vec![device.to_owned(), drawn], ..Timeline::default() };
    add_step(&mut timeline, plan, &causes(plan), RankId::new(0), 0, origin, &drawable);
    timeline
}
