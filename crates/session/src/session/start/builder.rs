//! Building a session: programs, policy, weights' first values, closures, ranks.
//!
//! Law: everything is checked and planned before any thread starts; what fails leaves nothing
//! running. The ranks compare the fingerprints of their plans before they reserve memory.

use std::convert::Infallible;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::any_backend::{Shared, Startable, Unstarted};
use super::cancelled::GivenUp;
use super::costs;
use super::custom_optimizer::{CustomOptimizer, required};
use super::plans::{Plans, host_buffers};
use crate::checkpoint::ranks::MasterRows;
use crate::checkpoint::{FrozenBase, UpdatedBy};
use crate::config::{ByteSize, Config, Reduce, Transport};
use crate::exec::{CaptureMode, FirstPlanes, Inbox, Initializer, World, report_bytes};
use crate::session::observe::recorder::{self, Recorder};
use crate::session::step::hyperparameters::Scheduled;
use crate::session::tuning::Tuning;
use crate::session::{CompiledHere, Program, Session, SessionError, Skips, Staged, Sum, SumPlan, Unseen};
use crate::trace::HostTrace;
use warpweft_backend::cpu::{CpuOptions, CpuWorld, Pace};
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_backend::{Backend, Checked};
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::compute::{Compute, ComputeError, ComputeFactory, Optimizer, Seat, Surface};
use warpweft_plan::model::{Accumulation, Mesh, Role, StepProgram};
use warpweft_plan::plan::{Costs, StepPlan};

/// A session in the making.
#[must_use = "a session begins with one of the `start` methods"]
pub struct SessionBuilder<S: Surface> {
    pub(in crate::session) config: Config,
    programs: Vec<StepProgram>,
    initializer: Option<Initializer>,
    base: Option<FrozenBase>,
    closures: ComputeFactory<S>,
    optimizer: Option<CustomOptimizer<S>>,
    /// How long ranks look for their next command before they sleep.
    pub(in crate::session) patience: Duration,
}

impl<S: Surface> std::fmt::Debug for SessionBuilder<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let programs: Vec<&str> = self.programs.iter().map(StepProgram::name).collect();
        out.debug_struct("SessionBuilder").field("programs", &programs).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts building a session. `closures` is called once per rank, on the thread that will run
    /// the rank's calls. A factory that can fail, or wants to know the rank's GPU, goes to
    /// [`Session::try_builder`].
    pub fn builder<S, C, F>(config: Config, closures: F) -> SessionBuilder<S>
    where
        S: Surface,
        C: Compute<S> + 'static,
        F: Fn(RankId) -> C + Send + Sync + 'static,
    {
        Self::try_builder(config, move |seat: Seat<S::Device>| Ok(closures(seat.rank)))
    }

    /// As [`Session::builder`], with a factory that gets the rank's [`Seat`], on GPUs the device's ordinal with
    /// it, and may fail. Where it fails the session does not start: the error ([`SessionError::Exec`]) names the
    /// rank and has the factory's words.
    pub fn try_builder<S, C, F>(config: Config, closures: F) -> SessionBuilder<S>
    where
        S: Surface,
        C: Compute<S> + 'static,
        F: Fn(Seat<S::Device>) -> Result<C, ComputeError> + Send + Sync + 'static,
    {
        SessionBuilder {
            config,
            programs: Vec::new(),
            initializer: None,
            base: None,
            optimizer: None,
            patience: Duration::ZERO,
            closures: Arc::new(move |seat| Ok(Box::new(closures(seat)?))),
        }
    }
}

impl<S: Surface + 'static> SessionBuilder<S> {
    /// Adds a program. All programs of a session are declared over one model.
    pub fn program(mut self, program: StepProgram) -> Self {
        self.programs.push(program);
        self
    }

    /// How masters begin: `fill` is called for every rank and weight, with the weight's name, the place of
    /// the rank's rows in it, and these rows, row-major. What it fills in must depend on name and place alone:
    /// ranks that hold the same rows are asked one by one, and must be given the same values.
    /// [`initial::normal`](super::initial::normal) and [`initial::zeros`](super::initial::zeros) make such functions.
    /// One that reads files, and so can fail, goes to [`SessionBuilder::try_initialize`].
    ///
    /// A session whose model has weights does not start without one of the two
    /// ([`SessionError::NotInitialized`]), unless it is in virtual time.
    pub fn initialize(self, fill: impl Fn(MasterRows<'_>, &mut [f32]) + Send + Sync + 'static) -> Self {
        self.try_initialize(move |rows, values| {
            fill(rows, values);
            Ok::<(), Infallible>(())
        })
    }

    /// As [`SessionBuilder::initialize`], with a function that may fail, such as that of
    /// [`PretrainedFiles::initializer`](crate::checkpoint::PretrainedFiles::initializer). Where it fails the session
    /// does not start: the error ([`ExecError::Initializer`](crate::session::ExecError::Initializer)) names the rank
    /// and the weight, and has the function's words.
    pub fn try_initialize<E: Display>(
        mut self,
        fill: impl Fn(MasterRows<'_>, &mut [f32]) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.initializer =
            Some(Arc::new(move |rows, values| fill(rows, values).map_err(|error| error.to_string())));
        self
    }

    /// A custom optimizer updates the weights, in place of the Adam of the configuration, of which learning rate,
    /// weight decay, betas and clipping remain. Every rank gets a clone.
    pub fn optimizer<O>(self, optimizer: O) -> Self
    where
        O: Optimizer<S> + Clone + Send + Sync + 'static,
    {
        let states = optimizer.states().len();
        let made = Arc::new(move |_seat| Ok(Box::new(optimizer.clone()) as Box<dyn Optimizer<S>>));
        self.with_optimizer(CustomOptimizer { states, made })
    }

    /// As [`SessionBuilder::optimizer`], with a factory that gets the rank's [`Seat`], on GPUs the device's ordinal
    /// with it, and may fail: for one that has code or memory on the device. It keeps as many `states` as its
    /// [`Optimizer::states`] has names.
    pub fn try_optimizer<O>(
        self,
        states: usize,
        factory: impl Fn(Seat<S::Device>) -> Result<O, ComputeError> + Send + Sync + 'static,
    ) -> Self
    where
        O: Optimizer<S> + 'static,
    {
        let made = Arc::new(move |seat| Ok(Box::new(factory(seat)?) as Box<dyn Optimizer<S>>));
        self.with_optimizer(CustomOptimizer { states, made })
    }

    fn with_optimizer(mut self, optimizer: CustomOptimizer<S>) -> Self {
        self.config.optimizer.custom_states = Some(u8::try_from(optimizer.states).unwrap_or(u8::MAX));
        self.optimizer = Some(optimizer);
        self
    }

    /// Frozen weights begin with these planes, bit for bit, in place of what [`SessionBuilder::initialize`] gives; see
    /// [`PretrainedFiles::frozen_base`](crate::checkpoint::PretrainedFiles::frozen_base).
    pub fn frozen_base(self, base: FrozenBase) -> Self {
        Self { base: Some(base), ..self }
    }

    /// Plans the programs and starts one rank per backend, each inside the checking layer if the configuration
    /// asks for it ([`Config::check`]) and the backend has none yet.
    ///
    /// # Errors
    /// [`SessionError::Backends`] unless `backends` are those of one whole world in rank order;
    /// [`SessionError::WeightRules`] unless programs are declared over a model that the rules of the
    /// configuration were applied to ([`Config::apply_weight_rules`]);
    /// [`SessionError::NotInitialized`] without [`SessionBuilder::initialize`]; [`SessionError::Checkpoint`] for a
    /// frozen weight of another format or shape than [`SessionBuilder::frozen_base`] has;
    /// [`SessionError::Unsupported`], [`SessionError::Plan`], [`SessionError::Trace`] and [`SessionError::Start`]
    /// before anything runs; [`SessionError::Exec`] with the cause when a rank cannot be set up.
    pub async fn start<B: Backend<Surface = S>>(self, backends: Vec<B>) -> Result<Session, SessionError> {
        self.config.validate()?;
        let ranks = u32::try_from(backends.len()).unwrap_or(u32::MAX);
        let deadline = self.config.deadline();
        self.start_in(Arc::new(Rendezvous::of_threads(ranks, deadline)), backends).await
    }

    /// As [`SessionBuilder::start`], for the ranks of this process of a world that may have others: one
    /// backend for each of `rendezvous.own()`. Every process calls it with the same configuration and
    /// programs.
    ///
    /// # Errors
    /// As [`SessionBuilder::start`]; what one process cannot do is told to all.
    pub async fn start_in<B: Backend<Surface = S>>(
        self,
        rendezvous: Arc<Rendezvous>,
        backends: Vec<B>,
    ) -> Result<Session, SessionError> {
        let is_planned = self.config.optimizer.custom_states.is_some();
        let updates = self.programs.iter().any(StepProgram::updates_weights);
        let closures = match is_planned && updates && self.optimizer.is_none() {
            true => required(self.closures),
            false => self.closures,
        };
        let (start, ranks) = Self { closures, ..self }.of_any(backends);
        start.start_in(rendezvous, ranks).await
    }

    /// Forgets the type of the backends, which are inside the checking layer then if the configuration asks for it.
    pub(in crate::session) fn of_any<B: Backend<Surface = S>>(
        self,
        backends: Vec<B>,
    ) -> (Start, Vec<Box<dyn Startable>>) {
        let Self { config, programs, initializer, base, closures, optimizer, patience } = self;
        let updated_by = Arc::new(OnceLock::new());
        let closures = match optimizer {
            Some(optimizer) => optimizer.beside(closures, &programs, Arc::clone(&updated_by)),
            None => closures,
        };
        let device = backends.first().map_or_else(String::new, Backend::describe);
        let check = config.check && !backends.iter().all(Backend::is_checked);
        let ranks = unstarted(backends.into_iter().map(|backend| Checked::when(check, backend)), &closures);
        (Start { config, programs, initializer, base, updated_by, patience, device }, ranks)
    }
}

/// All backends with the factory of closures.
fn unstarted<B: Backend>(
    backends: impl Iterator<Item = B>,
    closures: &ComputeFactory<B::Surface>,
) -> Vec<Box<dyn Startable>> {
    let unstarted = |backend| Unstarted { backend, closures: Arc::clone(closures) };
    backends.map(|backend| Box::new(unstarted(backend)) as Box<dyn Startable>).collect()
}

/// A [`SessionBuilder`] without closures, and so without their surface.
pub(in crate::session) struct Start {
    config: Config,
    programs: Vec<StepProgram>,
    initializer: Option<Initializer>,
    base: Option<FrozenBase>,
    /// Which custom optimizer updates the weights, once a rank has it.
    updated_by: Arc<OnceLock<UpdatedBy>>,
    patience: Duration,
    /// What the backends are, but for the checking layer.
    device: String,
}

impl Start {
    fn start_in(
        self,
        rendezvous: Arc<Rendezvous>,
        backends: Vec<Box<dyn Startable>>,
    ) -> CompiledHere<'static, Session> {
        Box::pin(async move {
            let told = Arc::clone(&rendezvous);
            let session = self.start_ranks(rendezvous, backends).await;
            session.inspect_err(|error| drop(told.end(&error.to_string())))
        })
    }

    async fn start_ranks(
        self,
        rendezvous: Arc<Rendezvous>,
        backends: Vec<Box<dyn Startable>>,
    ) -> Result<Session, SessionError> {
        self.config.validate()?;
        check_reduce(&self.config, &backends)?;
        let mesh = one_world(&backends, &rendezvous)?;
        check_replicas(&self.config, &self.device, mesh)?;
        let costs = costs::configured(&self.config, mesh.ranks())?;
        self.start_planned(mesh, costs.as_ref(), rendezvous, backends).await
    }

    /// Plans for `mesh`, counting with `costs`, and starts the ranks of `backends`.
    pub(in crate::session) async fn start_planned(
        self,
        mesh: Mesh,
        costs: Option<&Costs>,
        rendezvous: Arc<Rendezvous>,
        backends: Vec<Box<dyn Startable>>,
    ) -> Result<Session, SessionError> {
        let initializer = self.initializer()?;
        let device = backends.first().map_or_else(String::new, |backend| backend.describe());
        let plans = Plans::with_costs(&self.programs, &self.config, mesh, costs)?;
        check_outputs(&plans, &rendezvous)?;
        let tuning = Tuning::new(&self.config, &self.programs, &plans, costs)?;
        let foreseen = tuning.as_ref().map_or_else(Vec::new, Tuning::foreseen);
        let all = plans.all().chain(&foreseen).chain([&plans.prologue]);
        let arena = all.map(|plan| plan.arena.bytes()).max().unwrap_or(0);
        let lanes = plans.prologue.lanes.len();
        backends.first().map_or(Ok(()), |backend| backend.admit(backends.len(), lanes, arena))?;
        let inbox = Arc::new(Inbox::new(backends.len()));
        let shared = Shared {
            world: Arc::new(World::over(Arc::clone(&rendezvous))),
            prologue: Arc::clone(&plans.prologue),
            programs: plans.all().cloned().collect(),
            foreseen,
            capture: CaptureMode::from(&self.config),
            initializer,
            base: self.base.clone().map(|base| -> FirstPlanes {
                Arc::new(move |layout, rank| base.planes(layout, rank).map_err(|error| error.to_string()))
            }),
            patience: self.patience,
            inbox: Arc::clone(&inbox),
        };
        let landing_bytes = backends.first().map_or(Ok(0), |backend| backend.landing_bytes(&shared))?;
        let recorder = self.recorder(&backends, &device, &rendezvous)?;
        let programs = plans.programs.iter().map(|plan| Program::new(plan, backends.len()));
        let mut programs: Vec<Program> = programs.collect::<Result<_, _>>()?;
        let sum_plans = number_sums(&self.programs, &mut programs, &plans);
        let handovers =
            backends.iter().map(|_| plans.handover()).collect::<Result<Vec<_>, SessionError>>()?;
        let mut session = Session {
            ranks: Vec::new(),
            inbox,
            programs,
            sum_plans,
            updated_by: UpdatedBy::Adam,
            thawed: Vec::new(),
            thawing: Vec::new(),
            scheduled: Scheduled::configured(&self.config, &plans.prologue.weights),
            loss_scale: 1.0,
            steps: 0,
            has_gradients: false,
            sum: Sum::default(),
            skips: Skips::default(),
            max_skipped: self.config.optimizer.max_skipped,
            pending: None,
            unseen: Unseen::default(),
            refused: None,
            poisoned: None,
            diverged: None,
            recorder: None,
            device,
            landing_bytes,
            tuning,
            splits: false,
            is_virtual: false,
            rendezvous,
        };
        for (backend, handover) in backends.into_iter().zip(handovers) {
            let spans = recorder.as_ref().map(|recorder| recorder.lane(backend.rank()));
            let thread = backend
                .start(&shared, spans, handover)
                .inspect_err(|error| shared.world.end(&error.to_string()))?;
            session.ranks.push(thread);
        }
        // Dropped before the session is, whose drop waits for its ranks.
        let given_up = GivenUp::unless_ended(&session.rendezvous);
        let set_up = session.await_setup().await;
        given_up.ended();
        set_up?;
        if self.config.optimizer.custom_states.is_some() {
            session.updated_by = self.updated_by.get().cloned().unwrap_or(UpdatedBy::Unnamed);
        }
        // Behind it: a session that did not start has no trace to write over that of the last one.
        session.recorder = recorder;
        Ok(session)
    }

    /// What masters begin with, which only a model whose weights all have planes leaves open.
    fn initializer(&self) -> Result<Initializer, SessionError> {
        let mut open = None;
        for spec in self.programs.iter().flat_map(|program| program.model().weights()) {
            if !self.base.as_ref().map_or(Ok(false), |base| base.gives(spec))? {
                open = open.or(Some(spec));
            }
        }
        match (&self.initializer, open) {
            (Some(initializer), _) => Ok(Arc::clone(initializer)),
            (None, Some(weight)) => Err(SessionError::NotInitialized { weight: weight.name.clone() }),
            (None, None) => Ok(Arc::new(|_, _| Ok(()))),
        }
    }

    fn recorder(
        &self,
        backends: &[Box<dyn Startable>],
        device: &str,
        rendezvous: &Rendezvous,
    ) -> Result<Option<Recorder>, SessionError> {
        let wanted = &self.config.trace;
        let (true, Some(first)) = (wanted.enabled, backends.first()) else { return Ok(None) };
        let failed = |error: crate::trace::TraceError| SessionError::Trace {
            path: wanted.path.clone(),
            reason: error.to_string(),
        };
        let mut path = PathBuf::from(&wanted.path);
        if !rendezvous.is_whole() {
            // Processes of one host would write over each other's file.
            path = recorder::of_process(&path, rendezvous.range().start);
        }
        Recorder::check(&path.to_string_lossy())?;
        let host = HostTrace::start(&std::env::temp_dir(), first.origin()).map_err(failed)?;
        let first_step = u64::from(wanted.first_step);
        let steps = first_step..first_step + u64::from(wanted.steps);
        Ok(Some(Recorder::new(path, steps, host, device)))
    }
}

impl SessionBuilder<warpweft_backend::cpu::CpuSurface> {
    /// Starts `ranks` ranks on this machine's CPU, in as many replicas, checked and with a paced link as the
    /// configuration says.
    ///
    /// # Errors
    /// As [`SessionBuilder::start`]; [`SessionError::Config`] for a `transport` that only GPUs have;
    /// [`SessionError::Exec`] with [`BackendError::Room`](warpweft_backend::BackendError::Room), before anything is
    /// reserved, for more ranks than the system gives one process the threads and the memory for.
    pub async fn start_cpu(self, ranks: u32) -> Result<Session, SessionError> {
        self.start_cpu_here(ranks).await
    }

    fn start_cpu_here(self, ranks: u32) -> CompiledHere<'static, Session> {
        Box::pin(async move {
            self.config.validate()?;
            if self.config.transport != Transport::Auto {
                let advice = "remove it, or run on GPUs";
                return Err(self
                    .config
                    .unsupported("transport", "which is a way between GPUs", advice)
                    .into());
            }
            let pace = &self.config.cpu.link;
            let link = pace.bytes_per_s.map(|bytes_per_s| Pace {
                bytes_per_s,
                latency: Duration::from_secs_f64(pace.latency_us * 1e-6),
            });
            let world = CpuWorld::new(self.config.mesh_of(ranks)?, CpuOptions { link })?;
            let backends = (0..ranks).map(RankId::new).map(|rank| world.backend(rank));
            self.start(backends.collect::<Result<_, _>>()?).await
        })
    }
}

impl Program {
    fn new(plan: &Arc<StepPlan>, ranks: usize) -> Result<Self, SessionError> {
        let inputs = (0..ranks).map(|_| {
            let buffers = host_buffers(plan, |role| role == Role::Input)?;
            Ok(buffers.into_iter().map(|bytes| Staged { bytes, is_written: false }).collect())
        });
        Ok(Self { plan: Arc::clone(plan), sums: None, inputs: inputs.collect::<Result<_, SessionError>>()? })
    }
}

/// The plans of parts of sums in the order of their numbers, which come after those of the programs.
fn number_sums(declared: &[StepProgram], programs: &mut [Program], plans: &Plans) -> Vec<SumPlan> {
    let (mut sum_plans, first) = (Vec::new(), programs.len());
    let mut made = plans.sum_plans.as_chunks::<{ Accumulation::PARTS.len() }>().0.iter();
    for (number, (declared, program)) in declared.iter().zip(programs).enumerate() {
        let Some(of_program) = declared.is_accumulating().then(|| made.next()).flatten() else { continue };
        let begin = first + sum_plans.len();
        program.sums = Some([begin, begin + 1, begin + 2].map(ProgramId::at));
        let of_sum = |plan| SumPlan { program: ProgramId::at(number), plan: Arc::clone(plan) };
        sum_plans.extend(of_program.iter().map(of_sum));
    }
    sum_plans
}

/// The mesh of `backends`, if they are all ranks of this process, in rank order.
fn one_world(backends: &[Box<dyn Startable>], rendezvous: &Rendezvous) -> Result<Mesh, SessionError> {
    let Some(first) = backends.first() else {
        return Err(SessionError::Start { reason: "pass one backend per rank".into() });
    };
    let mesh = first.mesh();
    let own = rendezvous.own();
    let misplaced = |(_, (expected, backend)): &(usize, (RankId, &dyn Startable))| {
        backend.rank() != *expected || backend.mesh() != mesh
    };
    let all = backends.iter().map(Box::as_ref);
    let reason = match own.zip(all).enumerate().find(misplaced) {
        Some((position, (_, backend))) => {
            let (rank, ranks) = (backend.rank(), backend.mesh().ranks());
            format!("backend {position} speaks for {rank} of {ranks}")
        }
        None if backends.len() != rendezvous.range().len() || mesh.ranks() != rendezvous.ranks() => {
            format!("the world has {} ranks and {} backends were passed", mesh.ranks(), backends.len())
        }
        None => return Ok(mesh),
    };
    Err(SessionError::Backends { reason })
}

/// The backends' world has as many replicas as the configuration says.
fn check_replicas(config: &Config, device: &str, mesh: Mesh) -> Result<(), SessionError> {
    let replicate = config.mesh.replicate;
    if mesh.replicas() == replicate {
        return Ok(());
    }
    config.mesh_of(mesh.ranks())?;
    let device = device.to_owned();
    Err(SessionError::Replicas { replicate, replicas: mesh.replicas(), ranks: mesh.ranks(), device })
}

/// What a step reports to other processes must fit into what a rendezvous carries.
fn check_outputs(plans: &Plans, rendezvous: &Rendezvous) -> Result<(), SessionError> {
    let most = Rendezvous::MOST_BYTES;
    let too_much = |plan: &&Arc<StepPlan>| report_bytes(plan) > most;
    match plans.programs.iter().find(too_much).filter(|_| !rendezvous.is_whole()) {
        None => Ok(()),
        Some(plan) => Err(SessionError::Start {
            reason: format!(
                "what a step of `{}` tells of its buffers has {}, and processes tell each other {} at most; make \
                 outputs smaller, or declare fewer buffers",
                plan.name,
                ByteSize::of(report_bytes(plan)).in_full(),
                ByteSize::of(most).in_full()
            ),
        }),
    }
}

/// A backend sums as the configuration says, or says that it cannot.
fn check_reduce(config: &Config, backends: &[Box<dyn Startable>]) -> Result<(), SessionError> {
    match backends.iter().find(|backend| backend.reduce() != config.reduce) {
        None => Ok(()),
        Some(backend) => Err(match backend.reduce() {
            Reduce::Ordered => SessionError::Unsupported {
                key: "reduce",
                value: "nccl",
                reason: "this backend sums in rank order; use \"ordered\"",
            },
            Reduce::Nccl => SessionError::Unsupported {
                key: "reduce",
                value: "ordered",
                reason: "the backends were made to sum as NCCL does; make them with Reduce::Ordered, or use \"nccl\"",
            },
        }),
    }
}
