//! One rank: its device, its arena, its lanes, and the plans installed on them (`installed`).
//!
//! Law: everything happens between two step boundaries, and at a step boundary all lanes are drained. Host copies
//! happen only at step boundaries. A rank that cannot go on aborts the world before it reports, so that no peer waits
//! for it. The rank knows what its weights hold (**PL-9**): a plan runs only if that is what it needs at its entry, and
//! what its actors leave must be what it promised. One that continues a sum of gradients runs only where a step before
//! left one open. It counts the optimizer steps it issued (**PL-7**): if the arena's count differs, a step ran that was
//! not requested, such as a warm-up of a capture, and with it weights and gradients changed that were not to change.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::agreement::{agree_on_count, agree_on_plan};
use super::installed::{Driven, Installed, Staged, install};
use super::{CaptureMode, ComingStep, ExecError, Gauge, Handover, World};
use crate::actor::Poison;
use crate::checkpoint::FrozenDigest;
use warpweft_backend::{Activity, Backend, Meter, SnapshotMemory};
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Content, Region, Residency};
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::Vote;
use warpweft_plan::plan::{BoundaryState, StepPlan, carried};

/// What a rank has reserved for all plans it will run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Bytes of the arena.
    pub(super) arena: usize,
    /// Bytes besides it for what peers send.
    pub(super) receive_buffer: usize,
}

/// What a rank says it is doing while it runs the user's code at a start, for those that wait for it.
const MAKES_CLOSURES: &str = "it makes its closures; let their factory take less time, or raise deadline_s";

/// One rank of a session.
pub struct Rank<B: Backend> {
    pub(super) backend: B,
    pub(super) memory: B::Memory,
    pub(super) streams: Vec<B::Stream>,
    pub(super) prologue: Installed<B>,
    pub(super) programs: Vec<Installed<B>>,
    /// For programs whose steps took a snapshot, the plan by which they did; while one runs, the program's own.
    pub(super) copying: HashMap<ProgramId, Installed<B>>,
    /// Memory for a snapshot, from the first save in the background on. The last lane then makes copies.
    pub(super) snapshot: Option<Arc<dyn SnapshotMemory>>,
    /// For each of them, the first of its name, whose inputs and outputs are its own.
    staging: Vec<ProgramId>,
    /// What was reserved, which every plan must fit.
    pub(super) room: Room,
    /// Whether steps of programs are captured, except for trials.
    pub(super) capture: CaptureMode,
    /// Places of what is resident in every program.
    pub(super) places: HashMap<Content, Region>,
    /// Places of the carried buffers.
    pub(super) carried: Vec<Region>,
    /// What the weights hold, counted from the masters that were set last.
    pub(super) edge: BoundaryState,
    /// Do main grads hold a sum that the next step may continue?
    pub(super) sum_is_open: bool,
    /// Has a call of this rank written a gradient that is not finite, of those in main grads?
    pub(super) wrote_non_finite: bool,
    /// The digests of frozen weights, once they were requested; see [`Rank::frozen_digests`].
    pub(super) frozen: Option<Vec<Option<FrozenDigest>>>,
    /// Optimizer steps taken, those of an import included.
    pub(super) optimizer_steps: u32,
    pub(super) poison: Poison,
    pub(super) world: Arc<World>,
    /// The backend's.
    pub(super) meter: Arc<Meter>,
    gauge: Gauge,
    /// What the optimizer goes by, loss scale and gradient scale as they are in the arena, where only the host writes
    /// them.
    hyperparameters: Arc<[Hyperparameters]>,
    scalars: [Option<u32>; 2],
    /// Is a step on its way to the lanes, and not waited for yet?
    is_issuing: bool,
}

impl<B: Backend> std::fmt::Debug for Rank<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = out.debug_struct("Rank");
        shown.field("rank", &self.backend.rank()).field("programs", &self.programs);
        shown.field("edge", &self.edge).field("optimizer_steps", &self.optimizer_steps);
        shown.finish_non_exhaustive()
    }
}

impl<B: Backend> Rank<B> {
    /// Reserves the arena, opens the lanes and binds the plans, after all ranks have agreed on them.
    ///
    /// # Errors
    /// [`ExecError::PlansDiffer`], or what the backend refuses.
    pub fn new(
        backend: B,
        world: Arc<World>,
        prologue: Arc<StepPlan>,
        programs: Vec<Arc<StepPlan>>,
        capture: CaptureMode,
        closures: &ComputeFactory<B::Surface>,
    ) -> Result<Self, ExecError> {
        Self::with_room(backend, world, prologue, programs, &[], capture, closures)
    }

    /// Like [`Rank::new`], with room for plans that programs may run later in place of their own
    /// ([`ComingStep::adoption`]).
    ///
    /// # Errors
    /// As [`Rank::new`].
    pub fn with_room(
        backend: B,
        world: Arc<World>,
        prologue: Arc<StepPlan>,
        programs: Vec<Arc<StepPlan>>,
        foreseen: &[Arc<StepPlan>],
        capture: CaptureMode,
        closures: &ComputeFactory<B::Surface>,
    ) -> Result<Self, ExecError> {
        agree_on_count(&world, backend.rank(), programs.len())?;
        for plan in std::iter::once(&prologue).chain(&programs) {
            agree_on_plan(&world, backend.rank(), plan)?;
        }
        let all = || programs.iter().chain(foreseen);
        let room = Room {
            arena: all().chain([&prologue]).map(|plan| plan.arena.bytes()).max().unwrap_or(0),
            receive_buffer: receive_buffer_bytes(&backend, &prologue, all())?,
        };
        let memory = backend.reserve(room.arena, room.receive_buffer)?;
        let compute = prologue.compute_lane();
        world.stand(backend.rank(), MAKES_CLOSURES);
        let streams = prologue
            .lanes
            .iter()
            .map(|lane| backend.open(&memory, *lane, (lane.id == compute).then(|| Arc::clone(closures))))
            .collect::<Result<_, _>>()?;
        world.stand(backend.rank(), "");
        let (poison, meter) = (Poison::default(), backend.meter());
        let staging = staging(&programs);
        let carried = carried(&programs).into_iter().map(|(_, region)| region).collect();
        let places = places(&prologue);
        let prologue = install(&backend, &memory, prologue, CaptureMode::Off, false, &poison)?;
        let programs = programs
            .into_iter()
            .map(|plan| install(&backend, &memory, plan, capture, false, &poison))
            .collect::<Result<_, _>>()?;
        let edge = BoundaryState::NEW_MASTERS;
        let optimizer_steps = 0;
        Ok(Self {
            backend,
            memory,
            streams,
            prologue,
            programs,
            copying: HashMap::new(),
            snapshot: None,
            staging,
            room,
            capture,
            places,
            carried,
            edge,
            sum_is_open: false,
            wrote_non_finite: false,
            frozen: None,
            optimizer_steps,
            poison,
            world,
            meter,
            gauge: Gauge::default(),
            is_issuing: false,
            hyperparameters: Arc::default(),
            scalars: [None; 2],
        })
    }

    /// The rank's number.
    #[must_use]
    pub fn id(&self) -> RankId {
        self.backend.rank()
    }

    /// Runs one step of `program`, with the inputs in `handover`, and leaves the results there.
    ///
    /// # Errors
    /// [`ExecError::NoProgram`], [`ExecError::Entry`] and [`ExecError::Exit`] when the plan does not fit what
    /// ran before it, and faults of flow control or the backend. A closure's failure is not an error here: it
    /// is in the handover, and in every rank's vote. Nor is a master or a moment from which no training goes on
    /// ([`LastStep::diverged`](super::LastStep::diverged)): the rank lives on, for an import.
    ///
    /// # Panics
    /// When `handover.staged` was not made for the programs of this rank.
    pub fn step(&mut self, program: ProgramId, handover: &mut Handover) -> Result<(), ExecError> {
        let begun = Instant::now();
        self.meter.begin(handover.coming.splits);
        let outcome = self.try_step(program, handover);
        handover.times.took = begun.elapsed();
        self.meter.begin(false);
        if let Err(error) = &outcome {
            self.give_up(&error.to_string());
        }
        outcome
    }

    fn try_step(&mut self, program: ProgramId, handover: &mut Handover) -> Result<(), ExecError> {
        let (rank, programs) = (self.id(), self.programs.len());
        let Some(installed) = self.programs.get(program.index()) else {
            return Err(ExecError::NoProgram { rank, program, programs });
        };
        let name = installed.plan.name.as_str();
        let _span = tracing::info_span!("step", program = name, rank = rank.number()).entered();
        if let Some(adoption) = handover.coming.adoption.take() {
            self.adopt(program, adoption)?;
        }
        match handover.coming.snapshot.take() {
            Some(plan) => self.with_snapshot(program, plan, |rank| rank.step_of(program, handover)),
            None => self.step_of(program, handover),
        }
    }

    /// The step, by the plan that the program has now.
    fn step_of(&mut self, program: ProgramId, handover: &mut Handover) -> Result<(), ExecError> {
        self.quantize_new_masters()?;
        // New plans and new masters are not part of a step.
        let _ = self.meter.lap();
        self.upload_inputs(program, handover)?;
        let issues = self.backend.inspect(handover.coming.inspects);
        let driven = self.run(Some(program), issues)?;
        (handover.last.uncaptured, handover.times.issue, handover.last.segments) =
            (driven.uncaptured, driven.issue, driven.segments);
        (handover.times.issued, handover.times.edges) = (driven.issued, driven.before);
        let installed = &self.programs[program.index()];
        self.backend.intervals(&installed.bound, &mut handover.times.intervals);
        handover.times.exposure = self.gauge.measure(&installed.plan, &handover.times.intervals);
        handover.last.fault = self.streams.iter_mut().find_map(|stream| self.backend.take_fault(stream));
        let faulted = handover.last.fault.is_some();
        handover.last.diverged = self.divergence()?;
        let Self { backend, programs, world, meter, .. } = self;
        meter.within(Activity::Waiting, || programs[program.index()].settle(backend, world, faulted))?;
        let installed = &self.programs[program.index()];
        handover.last.vote = match installed.vote {
            None => None,
            Some(region) => {
                let mut vote = Vote::default();
                self.backend.download(&self.memory, region, bytemuck::bytes_of_mut(&mut vote))?;
                let plan = Arc::clone(&installed.plan);
                self.count(&plan.name, vote)?;
                Some(vote)
            }
        };
        handover.last.gradients = self.gradients(program, handover)?;
        self.download_outputs(program, handover)?;
        let plan = &self.programs[program.index()].plan;
        self.meter.within(Activity::Waiting, || {
            if handover.coming.measures {
                handover.times.agreed =
                    self.world.agree_on_times(self.id(), &handover.times.intervals, driven.step)?;
            }
            let staging = self.staging[program.index()];
            self.world.share_report(self.id(), plan, (staging, program), handover)
        })?;
        handover.times.edges += self.meter.lap();
        Ok(())
    }

    /// Runs the prologue, if masters were set since it last ran.
    pub(super) fn quantize_new_masters(&mut self) -> Result<(), ExecError> {
        if self.edge.shards != Some(self.edge.masters) {
            self.run(None, false)?;
            // No closure runs in it.
            let Self { backend, prologue, world, meter, .. } = self;
            meter.within(Activity::Waiting, || prologue.settle(backend, world, false))?;
        }
        Ok(())
    }

    /// One step between two step boundaries, of a program or of the prologue; with `issues` it is issued, captured or
    /// not.
    fn run(&mut self, program: Option<ProgramId>, issues: bool) -> Result<Driven, ExecError> {
        let Self {
            backend,
            streams,
            prologue,
            programs,
            edge,
            sum_is_open,
            poison,
            world,
            meter,
            is_issuing,
            ..
        } = self;
        let installed = program.map_or(prologue, |program| &mut programs[program.index()]);
        let rank = backend.rank();
        poison.check(rank)?;
        let (needed, held) = (installed.plan.entry, *edge);
        if !held.admits(needed) {
            return Err(ExecError::Entry { rank, program: installed.plan.name.clone(), needed, held });
        }
        let accumulation = installed.plan.accumulation;
        if accumulation.continues() && !*sum_is_open {
            return Err(ExecError::NoSum { rank, program: installed.plan.name.clone() });
        }
        *sum_is_open &= !installed.plan.writes_gradients();
        *is_issuing = true;
        // The lane of copies is for plans that have some.
        let lanes = installed.plan.lanes.len().min(streams.len());
        let driven = installed.drive(issues, backend, &mut streams[..lanes], world, meter);
        *is_issuing = false;
        let driven = driven?;
        poison.check(rank)?;
        let promised = installed.plan.exit;
        if let Some(found) = installed.unpromised() {
            return Err(ExecError::Exit { rank, program: installed.plan.name.clone(), found, promised });
        }
        *edge = held.after(promised);
        *sum_is_open |= accumulation.stays_open();
        Ok(driven)
    }

    /// Compares the arena's count of optimizer steps with the steps this rank issued. A backend that computes
    /// nothing leaves an empty vote, which a step that ran never does.
    fn count(&mut self, program: &str, vote: Vote) -> Result<(), ExecError> {
        let expected = self.optimizer_steps.wrapping_add(u32::from(!vote.skips()));
        if vote != Vote::default() && vote.step != expected {
            let (rank, program) = (self.id(), program.to_owned());
            return Err(ExecError::Steps { rank, program, counted: vote.step, issued: expected });
        }
        self.optimizer_steps = vote.step;
        Ok(())
    }

    fn upload_inputs(&mut self, program: ProgramId, handover: &Handover) -> Result<(), ExecError> {
        let ComingStep { hyperparameters, loss_scale, gradient_scale, .. } = &handover.coming;
        let [written, coming] = [&self.hyperparameters, hyperparameters].map(|all| bytemuck::cast_slice(all));
        if written != coming {
            self.write(Content::Hyperparameters, coming)?;
            self.hyperparameters = Arc::clone(hyperparameters);
        }
        let contents = [Content::LossScale, Content::GradientScale];
        let values = [*loss_scale, *gradient_scale];
        for (place, (content, value)) in contents.into_iter().zip(values).enumerate() {
            if self.scalars[place] != Some(value.to_bits()) {
                self.write(content, &value.to_le_bytes())?;
                self.scalars[place] = Some(value.to_bits());
            }
        }
        let staging = self.staging[program.index()];
        for Staged { region, buffer, bytes } in &self.programs[program.index()].inputs {
            let bytes = &handover.staged[staging.index()][buffer.index()][bytes.clone()];
            self.backend.upload(&self.memory, *region, bytes)?;
        }
        Ok(())
    }

    fn download_outputs(&self, program: ProgramId, handover: &mut Handover) -> Result<(), ExecError> {
        let staging = self.staging[program.index()];
        for Staged { region, buffer, bytes } in &self.programs[program.index()].outputs {
            let bytes = &mut handover.staged[staging.index()][buffer.index()][bytes.clone()];
            self.backend.download(&self.memory, *region, bytes)?;
        }
        Ok(())
    }

    /// Tells every rank of the world that this one is gone. If a panic broke a step off, the lanes run out
    /// first: what is left on them may wait for peers, and memory cannot be given back while it does.
    pub fn give_up(&mut self, reason: &str) {
        if std::mem::take(&mut self.is_issuing) {
            self.backend.poison(reason);
            self.world.end(reason);
            for stream in &mut self.streams {
                // It fails because its world is poisoned.
                drop(self.backend.synchronize(stream));
            }
        }
        self.backend.abort(reason);
        self.world.end(reason);
    }
}

/// For every plan, the first of its name: parts of an accumulation are plans of one program.
fn staging(plans: &[Arc<StepPlan>]) -> Vec<ProgramId> {
    let first = |plan: &Arc<StepPlan>| plans.iter().position(|other| other.name == plan.name);
    plans.iter().filter_map(first).map(ProgramId::at).collect()
}

/// Where the resident slots of a plan are.
fn places(plan: &StepPlan) -> HashMap<Content, Region> {
    let resident = plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident);
    resident.map(|slot| (slot.content, slot.region)).collect()
}

/// Bytes the backend needs besides the arena of each rank, for the most demanding of these plans.
///
/// # Errors
/// What the backend refuses of a plan.
pub fn receive_buffer_bytes<'plans, B: Backend>(
    backend: &B,
    prologue: &'plans StepPlan,
    programs: impl IntoIterator<Item = &'plans Arc<StepPlan>>,
) -> Result<usize, ExecError> {
    let mut most = 0;
    for plan in programs.into_iter().map(AsRef::as_ref).chain([prologue]) {
        most = most.max(backend.receive_buffer_bytes(&plan.binding(backend.rank(), &plan.ops()))?);
    }
    Ok(most)
}
