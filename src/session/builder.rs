//! Building a session: programs, policy, weights' first values, closures, ranks.
//!
//! Law: everything is checked and planned before any thread starts; what fails leaves nothing
//! running. Every rank builds its own plans, from the same declaration, and the ranks compare
//! fingerprints before they reserve memory.

use std::sync::Arc;
use std::time::Duration;

use super::recorder::Recorder;
use super::{Program, Session, SessionError};
use crate::backend::cpu::{CpuOptions, CpuWorld, Link};
use crate::backend::{Backend, Checked};
use crate::compute::{Compute, ComputeFactory, Surface};
use crate::config::Config;
use crate::exec::{CaptureMode, Exchange, Inbox, Initializer, RankThread, Setup, World};
use crate::id::RankId;
use crate::layout::{StateLayout, Weights};
use crate::model::{Mesh, Role, StepProgram};
use crate::plan::{Policy, ResidentLayout, StepPlan};
use crate::trace::HostTrace;

/// How long ranks wait for each other while they are set up.
const SETUP_DEADLINE: Duration = Duration::from_secs(30);

/// A session in the making.
pub struct SessionBuilder<S: Surface> {
    config: Config,
    programs: Vec<StepProgram>,
    initializer: Initializer,
    closures: ComputeFactory<S>,
}

impl<S: Surface> std::fmt::Debug for SessionBuilder<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let programs: Vec<&str> = self.programs.iter().map(StepProgram::name).collect();
        out.debug_struct("SessionBuilder").field("programs", &programs).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts building a session. `closures` is called once per rank, on the thread that will run
    /// the rank's calls.
    pub fn builder<S, C, F>(config: Config, closures: F) -> SessionBuilder<S>
    where
        S: Surface,
        C: Compute<S> + 'static,
        F: Fn(RankId) -> C + Send + Sync + 'static,
    {
        SessionBuilder {
            config,
            programs: Vec::new(),
            initializer: Arc::new(|_, _, _, _| {}),
            closures: Arc::new(move |rank| Box::new(closures(rank))),
        }
    }
}

impl<S: Surface + 'static> SessionBuilder<S> {
    /// Adds a program. All programs of a session are declared over one model.
    #[must_use]
    pub fn program(mut self, program: StepProgram) -> Self {
        self.programs.push(program);
        self
    }

    /// How masters begin: called per rank and weight with the weight's name, the first row, the
    /// number of columns and the rank's rows, row-major. Without it masters begin as zeros.
    #[must_use]
    pub fn initialize(
        mut self,
        fill: impl Fn(&str, usize, usize, &mut [f32]) + Send + Sync + 'static,
    ) -> Self {
        self.initializer = Arc::new(fill);
        self
    }

    /// Plans the programs and starts one rank per backend.
    ///
    /// # Errors
    /// [`SessionError::Plan`] and [`SessionError::Start`] before anything runs, then whatever the
    /// ranks report.
    pub async fn start<B: Backend<Surface = S>>(self, backends: Vec<B>) -> Result<Session, SessionError> {
        self.config.validate()?;
        let misplaced = |(position, backend): &(usize, &B)| backend.rank() != RankId::at(*position);
        if let Some((position, backend)) = backends.iter().enumerate().find(misplaced) {
            let reason =
                format!("backend {position} speaks for {}; pass one per rank, in rank order", backend.rank());
            return Err(SessionError::Start { reason });
        }
        let device = backends.first().map_or_else(String::new, Backend::describe);
        let ranks = u32::try_from(backends.len()).unwrap_or(u32::MAX);
        let mesh = Mesh::new(ranks)?;
        let policy = Policy::from(&self.config);
        let capture = CaptureMode::from(&self.config);
        let plans = self.plans(mesh, &policy)?;
        let recorder = self.recorder(&backends, &device)?;
        let world = Arc::new(World::new(ranks, SETUP_DEADLINE));
        let inbox = Arc::new(Inbox::new(backends.len()));
        let mut session = Session {
            ranks: Vec::new(),
            inbox: Arc::clone(&inbox),
            programs: plans.1.iter().map(|plan| Program::new(plan, ranks)).collect(),
            learning_rate: self.config.optimizer.lr as f32,
            loss_scale: 1.0,
            steps: 0,
            pending: None,
            poisoned: None,
            recorder: None,
            device,
        };
        for (number, backend) in backends.into_iter().enumerate() {
            let (prologue, programs) = self.plans(mesh, &policy)?;
            let setup = Setup {
                backend,
                world: Arc::clone(&world),
                prologue: Arc::new(prologue),
                programs: programs.into_iter().map(Arc::new).collect(),
                capture,
                closures: Arc::clone(&self.closures),
                initializer: Arc::clone(&self.initializer),
                spans: recorder.as_ref().map(|recorder| recorder.lane(RankId::at(number))),
            };
            let thread =
                RankThread::start(setup, exchange(&plans.1), Arc::clone(&inbox)).inspect_err(|error| {
                    world.leave(&error.to_string());
                })?;
            session.ranks.push(thread);
        }
        session.recorder = recorder;
        session.await_setup().await?;
        Ok(session)
    }

    fn plans(&self, mesh: Mesh, policy: &Policy) -> Result<(StepPlan, Vec<StepPlan>), SessionError> {
        let Some(first) = self.programs.first() else {
            return Err(SessionError::Start { reason: "add at least one program".into() });
        };
        let named_twice = |program: &StepProgram| {
            self.programs.iter().filter(|other| other.name() == program.name()).count() > 1
        };
        if let Some(program) = self.programs.iter().find(|program| named_twice(program)) {
            return Err(SessionError::Start {
                reason: format!("two programs are named `{}`", program.name()),
            });
        }
        let weights = Weights::new(first.model().weights(), mesh).with_state(StateLayout::from(&self.config));
        let programs: Vec<&StepProgram> = self.programs.iter().collect();
        let resident = ResidentLayout::new(&weights, &programs)?;
        let prologue = StepPlan::prologue(&weights, &resident, policy)?;
        let plans = programs
            .into_iter()
            .map(|program| StepPlan::within(program, &weights, &resident, policy))
            .collect::<Result<_, _>>()?;
        Ok((prologue, plans))
    }

    fn recorder<B: Backend>(&self, backends: &[B], device: &str) -> Result<Option<Recorder>, SessionError> {
        let wanted = &self.config.trace;
        let (true, Some(first)) = (wanted.enabled, backends.first()) else { return Ok(None) };
        let failed = |error: crate::trace::TraceError| SessionError::Trace {
            path: wanted.path.clone(),
            reason: error.to_string(),
        };
        let host = HostTrace::start(&std::env::temp_dir(), first.origin()).map_err(failed)?;
        let first_step = u64::from(wanted.first_step);
        let steps = first_step..first_step + u64::from(wanted.steps);
        Ok(Some(Recorder::new(wanted.path.clone().into(), steps, host, device)))
    }
}

impl SessionBuilder<crate::backend::cpu::CpuSurface> {
    /// Starts `ranks` ranks on this machine's CPU, checked and with a paced link if the
    /// configuration says so.
    ///
    /// # Errors
    /// As [`SessionBuilder::start`].
    pub async fn start_cpu(self, ranks: u32) -> Result<Session, SessionError> {
        let pace = &self.config.cpu.link;
        let link = pace.bytes_per_s.map(|bytes_per_s| Link {
            bytes_per_s,
            latency: Duration::from_secs_f64(pace.latency_us * 1e-6),
        });
        let world = CpuWorld::new(Mesh::new(ranks)?, CpuOptions { link })?;
        let backends: Vec<_> =
            (0..ranks).map(RankId::new).map(|rank| world.backend(rank)).collect::<Result<_, _>>()?;
        if self.config.check {
            self.start(backends.into_iter().map(Checked::new).collect()).await
        } else {
            self.start(backends).await
        }
    }
}

impl Program {
    fn new(plan: &StepPlan, ranks: u32) -> Self {
        let inputs = plan
            .buffers
            .iter()
            .map(|spec| if spec.role == Role::Input { vec![0; spec.bytes()] } else { Vec::new() })
            .collect::<Vec<_>>();
        Self { plan: Arc::new(plan.clone()), inputs: vec![inputs; ranks as usize] }
    }
}

fn exchange(plans: &[StepPlan]) -> Exchange {
    let staged = plans
        .iter()
        .map(|plan| {
            let staged = |role| matches!(role, Role::Input | Role::Output);
            let bytes = plan
                .buffers
                .iter()
                .map(|spec| if staged(spec.role) { vec![0; spec.bytes()] } else { Vec::new() });
            bytes.collect()
        })
        .collect();
    let longest = plans.iter().map(|plan| plan.tasks.len()).max().unwrap_or(0);
    Exchange { staged, intervals: Vec::with_capacity(longest), ..Exchange::default() }
}
