//! Starting a session: plans, checks, ranks.
//!
//! Law: everything is checked and planned before any thread starts; what fails leaves nothing
//! running. The ranks compare the fingerprints of their plans before they reserve memory.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::any_backend::{Shared, Startable};
use super::cancelled::GivenUp;
use super::checks::{check_mesh, check_outputs, check_reduce, one_world};
use super::costs;
use super::faster::say_what_is_faster;
use super::plans::{Plans, host_buffers};
use crate::checkpoint::{FrozenBase, OptimizerIdentity};
use crate::config::Config;
use crate::exec::{CaptureMode, FirstPlanes, Inbox, Initializer, World};
use crate::session::observe::recorder::{self, Recorder};
use crate::session::step::hyperparameters::Scheduled;
use crate::session::tuning::Tuning;
use crate::session::weights::background_save::BackgroundSaves;
use crate::session::{CompiledHere, Program, Session, SessionError, Skips, Staged, Sum, SumPlan, Unseen};
use crate::trace::HostTrace;
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_base::id::ProgramId;
use warpweft_plan::model::{Accumulation, Mesh, Role, StepProgram};
use warpweft_plan::plan::{Costs, StepPlan};

/// A [`SessionBuilder`] without closures, and so without their surface.
pub(in crate::session) struct Start {
    pub(super) config: Config,
    pub(super) programs: Vec<StepProgram>,
    pub(super) initializer: Option<Initializer>,
    pub(super) base: Option<FrozenBase>,
    /// Adam, or which custom optimizer updates the weights, once a rank has it.
    pub(super) optimizer_identity: Arc<OnceLock<OptimizerIdentity>>,
    pub(super) patience: Duration,
    /// What the backends are, but for the checking layer.
    pub(super) device: String,
}

impl Start {
    pub(super) fn start_in(
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
        check_mesh(&self.config, &self.device, mesh)?;
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
            optimizer_identity: Arc::clone(&self.optimizer_identity),
            initializer,
            base: self.base.clone().map(|base| -> FirstPlanes {
                Arc::new(move |layout, rank| base.planes(layout, rank).map_err(|error| error.to_string()))
            }),
            patience: self.patience,
            inbox: Arc::clone(&inbox),
        };
        let receive_buffer_bytes =
            backends.first().map_or(Ok(0), |backend| backend.receive_buffer_bytes(&shared))?;
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
            optimizer_identity: OptimizerIdentity::Adam,
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
            saves: BackgroundSaves::at_most(self.config.checkpoint.snapshot_bytes),
            poisoned: None,
            diverged: None,
            recorder: None,
            device,
            receive_buffer_bytes,
            tuning,
            splits: false,
            is_virtual: false,
            rendezvous,
        };
        let is_first = backends.first().is_some_and(|backend| backend.rank().index() == 0);
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
        session.optimizer_identity =
            self.optimizer_identity.get().cloned().unwrap_or(OptimizerIdentity::Unnamed);
        // After it: a session that did not start has no trace to write over that of the last one.
        session.recorder = recorder;
        if is_first {
            say_what_is_faster(self.programs, &plans, self.config, mesh, costs);
        }
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
