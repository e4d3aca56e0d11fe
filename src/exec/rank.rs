//! One rank: its device, its arena, its lanes, and the plans installed on them.
//!
//! Law: everything happens between two edges, and at an edge all lanes are drained. Host copies
//! happen at edges alone. A rank that cannot go on aborts the world before it reports, so that no
//! peer waits for it.

use std::sync::Arc;

use bytemuck::Pod;
use half::bf16;

use super::capture::Action;
use super::{Capture, CaptureMode, Exchange, ExecError, Initializer, Pump, WeightShard, World};
use crate::backend::Backend;
use crate::compute::ComputeFactory;
use crate::config::Moments;
use crate::format::{DelayedState, Orientation, join_master, split_master};
use crate::id::{RankId, WeightId};
use crate::layout::{Content, PlaneRegions, Region};
use crate::model::{Placement, Role};
use crate::op::{Op, Vote};
use crate::plan::StepPlan;

/// A plan installed on a rank.
pub struct Installed<B: Backend> {
    plan: Arc<StepPlan>,
    bound: B::Bound,
    pump: Pump<B>,
    capture: Capture<B::Graph>,
    vote: Option<Region>,
}

/// One rank of a session.
pub struct Rank<B: Backend> {
    backend: B,
    memory: B::Memory,
    streams: Vec<B::Stream>,
    prologue: Installed<B>,
    programs: Vec<Installed<B>>,
    needs_prologue: bool,
    world: Arc<World>,
}

impl<B: Backend> Rank<B> {
    /// Reserves the arena, opens the lanes and binds the plans, after all ranks agreed on them.
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
        for plan in std::iter::once(&prologue).chain(&programs) {
            agree(&world, backend.rank(), plan)?;
        }
        let bytes = programs.iter().chain([&prologue]).map(|plan| plan.arena.bytes()).max().unwrap_or(0);
        let memory = backend.reserve(bytes)?;
        let compute = prologue.compute_lane();
        let streams = prologue
            .lanes
            .iter()
            .map(|lane| backend.open(&memory, *lane, (lane.id == compute).then(|| Arc::clone(closures))))
            .collect::<Result<_, _>>()?;
        let prologue = install(&backend, &memory, prologue, CaptureMode::Off)?;
        let programs = programs
            .into_iter()
            .map(|plan| install(&backend, &memory, plan, capture))
            .collect::<Result<_, _>>()?;
        Ok(Self { backend, memory, streams, prologue, programs, needs_prologue: true, world })
    }

    /// The rank's number.
    #[must_use]
    pub fn id(&self) -> RankId {
        self.backend.rank()
    }

    /// Runs one step of program `program` with the inputs in `exchange`, and leaves there what
    /// came of it.
    ///
    /// # Errors
    /// Faults of flow control or the backend. A closure's failure is no error here: it is in the
    /// exchange, and in every rank's vote.
    pub fn step(&mut self, program: usize, exchange: &mut Exchange) -> Result<(), ExecError> {
        let outcome = self.try_step(program, exchange);
        if let Err(error) = &outcome {
            self.give_up(&error.to_string());
        }
        outcome
    }

    fn try_step(&mut self, program: usize, exchange: &mut Exchange) -> Result<(), ExecError> {
        let _span = tracing::info_span!("step", program).entered();
        if std::mem::take(&mut self.needs_prologue) {
            run(&self.backend, &mut self.streams, &mut self.prologue, &self.world)?;
        }
        let installed = &mut self.programs[program];
        let plan = Arc::clone(&installed.plan);
        self.upload_inputs(&plan, program, exchange)?;
        let installed = &mut self.programs[program];
        run(&self.backend, &mut self.streams, installed, &self.world)?;
        self.backend.intervals(&installed.bound, &mut exchange.intervals);
        exchange.fault = self.streams.iter_mut().find_map(|stream| self.backend.take_fault(stream));
        exchange.vote = match installed.vote {
            None => None,
            Some(region) => {
                let mut vote = Vote::default();
                self.backend.download(&self.memory, region, bytemuck::bytes_of_mut(&mut vote))?;
                Some(vote)
            }
        };
        self.download_outputs(&plan, program, exchange)
    }

    fn upload_inputs(&self, plan: &StepPlan, program: usize, exchange: &Exchange) -> Result<(), ExecError> {
        self.write(Content::LearningRate, &exchange.learning_rate.to_ne_bytes())?;
        self.write(Content::LossScale, &exchange.loss_scale.to_ne_bytes())?;
        for (slot, number) in staging(plan, Role::Input) {
            self.backend.upload(&self.memory, slot, &exchange.staged[program][number])?;
        }
        Ok(())
    }

    fn download_outputs(
        &self,
        plan: &StepPlan,
        program: usize,
        exchange: &mut Exchange,
    ) -> Result<(), ExecError> {
        for (slot, number) in staging(plan, Role::Output) {
            self.backend.download(&self.memory, slot, &mut exchange.staged[program][number])?;
        }
        Ok(())
    }

    /// Fills the masters of the rank's rows; moments and step count are zero.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn initialize(
        &mut self,
        initializer: &Initializer,
        exchange: &mut Exchange,
    ) -> Result<(), ExecError> {
        let plan = Arc::clone(&self.prologue.plan);
        exchange.optimizer_step = 0;
        exchange.shards = (plan.weights.layouts.iter())
            .map(|layout| {
                let rows = layout.shard.rows_of(self.id());
                let elements = rows.rows * layout.shard.shape.cols;
                let mut master = vec![0.0; elements];
                initializer(&layout.name, rows.begin, layout.shard.shape.cols, &mut master);
                let zeros = vec![0.0; elements];
                WeightShard { master, exp_avg: zeros.clone(), exp_avg_sq: zeros, ..WeightShard::default() }
            })
            .collect();
        let outcome = self.import(exchange);
        exchange.shards = Vec::new();
        outcome
    }

    /// Copies masters, moments, step count and planes of the rank's rows into `exchange`.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn export(&mut self, exchange: &mut Exchange) -> Result<(), ExecError> {
        if std::mem::take(&mut self.needs_prologue) {
            run(&self.backend, &mut self.streams, &mut self.prologue, &self.world)?;
        }
        let plan = &self.prologue.plan;
        exchange.shards.clear();
        for number in 0..plan.weights.layouts.len() {
            let weight = WeightId::at(number);
            exchange.shards.push(WeightShard {
                master: self.master(weight)?,
                exp_avg: self.moment(Content::ExpAvg(weight), weight)?,
                exp_avg_sq: self.moment(Content::ExpAvgSq(weight), weight)?,
                planes: self.planes(weight)?,
                tensor_scale: self.tensor_scale(weight)?,
                delayed: self.delayed(weight)?,
            });
        }
        let mut step = [0; 4];
        self.read(Content::OptimizerStep, &mut step)?;
        exchange.optimizer_step = u32::from_ne_bytes(step);
        Ok(())
    }

    /// Puts masters, moments, delayed scales and step count from `exchange` in place; the planes follow from
    /// them before the next step.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn import(&mut self, exchange: &Exchange) -> Result<(), ExecError> {
        for (number, shard) in exchange.shards.iter().enumerate() {
            let weight = WeightId::at(number);
            self.write_master(weight, &shard.master)?;
            self.write_moment(Content::ExpAvg(weight), &shard.exp_avg)?;
            self.write_moment(Content::ExpAvgSq(weight), &shard.exp_avg_sq)?;
            self.write_delayed(weight, shard.delayed.as_ref())?;
        }
        self.write(Content::OptimizerStep, &exchange.optimizer_step.to_ne_bytes())?;
        self.needs_prologue = true;
        Ok(())
    }

    /// Tells every rank of the world that this one is gone.
    pub fn give_up(&self, reason: &str) {
        self.backend.abort(reason);
        self.world.leave(reason);
    }

    /// The rank's real elements of `weight`, as `T` lies in the arena.
    fn values<T: Pod>(&self, content: Content, weight: WeightId) -> Result<Vec<T>, ExecError> {
        let layout = self.prologue.plan.weights.layout(weight);
        let mut values = vec![T::zeroed(); layout.shard.rows_of(self.id()).rows * layout.shard.shape.cols];
        self.read(content, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// The master as f32, joined if it is stored in halves.
    fn master(&self, weight: WeightId) -> Result<Vec<f32>, ExecError> {
        if !self.splits_master(weight) {
            return self.values(Content::Master(weight), weight);
        }
        let high: Vec<u16> = self.values(Content::Shard(weight, Orientation::Rowwise), weight)?;
        let low: Vec<i16> = self.values(Content::MasterRemainder(weight), weight)?;
        Ok(high.into_iter().zip(low).map(|(high, low)| join_master(high, low)).collect())
    }

    fn write_master(&self, weight: WeightId, values: &[f32]) -> Result<(), ExecError> {
        if !self.splits_master(weight) {
            return self.write(Content::Master(weight), bytemuck::cast_slice(values));
        }
        let (high, low): (Vec<u16>, Vec<i16>) = values.iter().copied().map(split_master).unzip();
        self.write(Content::Shard(weight, Orientation::Rowwise), bytemuck::cast_slice(&high))?;
        self.write(Content::MasterRemainder(weight), bytemuck::cast_slice(&low))
    }

    fn splits_master(&self, weight: WeightId) -> bool {
        let weights = &self.prologue.plan.weights;
        weights.splits_masters(weights.layout(weight).bucket)
    }

    /// A moment as f32, whatever it is stored as.
    fn moment(&self, content: Content, weight: WeightId) -> Result<Vec<f32>, ExecError> {
        match self.prologue.plan.weights.state.moments {
            Moments::F32 => self.values(content, weight),
            Moments::Bf16 => {
                Ok(self.values::<bf16>(content, weight)?.into_iter().map(bf16::to_f32).collect())
            }
        }
    }

    fn write_moment(&self, content: Content, values: &[f32]) -> Result<(), ExecError> {
        match self.prologue.plan.weights.state.moments {
            Moments::F32 => self.write(content, bytemuck::cast_slice(values)),
            Moments::Bf16 => {
                let rounded: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
                self.write(content, bytemuck::cast_slice(&rounded))
            }
        }
    }

    fn planes(&self, weight: WeightId) -> Result<Vec<Vec<u8>>, ExecError> {
        let plan = &self.prologue.plan;
        let layout = plan.weights.layout(weight);
        let mut planes = Vec::new();
        if layout.placement == Placement::Replicated {
            return Ok(planes);
        }
        for orientation in layout.format.stored_orientations() {
            let Some(slot) = plan.arena.find(Content::Shard(weight, *orientation)) else { continue };
            let regions = PlaneRegions::within(plan.arena.region(slot), &layout.shard_planes(*orientation));
            for region in [regions.data, regions.scale] {
                let mut bytes = vec![0; region.bytes];
                self.backend.download(&self.memory, region, &mut bytes)?;
                planes.push(bytes);
            }
        }
        Ok(planes)
    }

    fn tensor_scale(&self, weight: WeightId) -> Result<f32, ExecError> {
        let bucket = self.prologue.plan.weights.layout(weight).bucket;
        let Some(region) = self.own_values(Content::TensorScale(bucket), weight, 1) else {
            return Ok(1.0);
        };
        let mut scale = 0.0;
        self.backend.download(&self.memory, region, bytemuck::bytes_of_mut(&mut scale))?;
        Ok(scale)
    }

    fn delayed(&self, weight: WeightId) -> Result<Option<DelayedState>, ExecError> {
        let Some((scale, history, length)) = self.delayed_places(weight) else { return Ok(None) };
        let mut state = DelayedState::new(length);
        self.backend.download(&self.memory, scale, bytemuck::bytes_of_mut(&mut state.scale))?;
        self.backend.download(&self.memory, history, bytemuck::cast_slice_mut(&mut state.history))?;
        Ok(Some(state))
    }

    fn write_delayed(&self, weight: WeightId, state: Option<&DelayedState>) -> Result<(), ExecError> {
        let Some((scale, history, length)) = self.delayed_places(weight) else { return Ok(()) };
        let state = state.map_or_else(|| DelayedState::new(length), |state| state.with_length(length));
        self.backend.upload(&self.memory, scale, bytemuck::bytes_of(&state.scale))?;
        Ok(self.backend.upload(&self.memory, history, bytemuck::cast_slice(&state.history))?)
    }

    /// Where the weight's scale in use and its amax history lie, and how long the history is.
    fn delayed_places(&self, weight: WeightId) -> Option<(Region, Region, usize)> {
        let weights = &self.prologue.plan.weights;
        let bucket = weights.layout(weight).bucket;
        let length = weights.delayed(bucket)?.1.history as usize;
        let scale = self.own_values(Content::DelayedScale(bucket), weight, 1)?;
        Some((scale, self.own_values(Content::AmaxHistory(bucket), weight, length)?, length))
    }

    /// The weight's `count` f32 values in a slot that holds as many for every weight of its bucket.
    fn own_values(&self, content: Content, weight: WeightId, count: usize) -> Option<Region> {
        let plan = &self.prologue.plan;
        let bytes = count * size_of::<f32>();
        let slot = plan.arena.find(content)?;
        plan.arena.region(slot).part(plan.weights.layout(weight).position * bytes, bytes)
    }

    fn read(&self, content: Content, bytes: &mut [u8]) -> Result<(), ExecError> {
        match self.place(content, bytes.len()) {
            Some(region) => Ok(self.backend.download(&self.memory, region, bytes)?),
            None => Ok(()),
        }
    }

    fn write(&self, content: Content, bytes: &[u8]) -> Result<(), ExecError> {
        match self.place(content, bytes.len()) {
            Some(region) => Ok(self.backend.upload(&self.memory, region, bytes)?),
            None => Ok(()),
        }
    }

    /// The first `bytes` bytes of a common resident slot.
    fn place(&self, content: Content, bytes: usize) -> Option<Region> {
        let arena = &self.prologue.plan.arena;
        arena.find(content).and_then(|slot| arena.region(slot).part(0, bytes))
    }
}

fn agree(world: &World, rank: RankId, plan: &StepPlan) -> Result<(), ExecError> {
    let all = world.exchange(rank, plan.fingerprint())?;
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let listed: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(rank, fingerprint)| format!("{} has {fingerprint:016x}", RankId::at(rank)))
        .collect();
    Err(ExecError::PlansDiffer { program: plan.name.clone(), fingerprints: listed.join(", ") })
}

fn install<B: Backend>(
    backend: &B,
    memory: &B::Memory,
    plan: Arc<StepPlan>,
    capture: CaptureMode,
) -> Result<Installed<B>, ExecError> {
    let ops = plan.ops();
    let bound = backend.bind(memory, &plan.binding(backend.rank(), &ops))?;
    let vote = plan.tasks.iter().find_map(|task| match task.op {
        Op::Vote { vote, .. } => Some(plan.arena.region(vote)),
        _ => None,
    });
    Ok(Installed {
        bound,
        pump: Pump::new(backend.rank(), &plan),
        capture: Capture::new(capture),
        vote,
        plan,
    })
}

/// One step between two edges.
fn run<B: Backend>(
    backend: &B,
    streams: &mut [B::Stream],
    installed: &mut Installed<B>,
    world: &World,
) -> Result<(), ExecError> {
    let Installed { plan, bound, pump, capture, .. } = installed;
    if capture.action() == Action::Record {
        backend.begin_capture(streams, bound)?;
        let issued = pump.run(backend, streams, bound);
        let graph = backend.end_capture(streams, bound);
        let usable = u64::from(issued.is_ok() && graph.is_ok());
        let all_usable = world.exchange(backend.rank(), usable)?.iter().all(|vote| *vote == 1);
        capture.recorded(graph.ok().filter(|_| all_usable));
    }
    backend.begin_step(bound)?;
    match capture.graph() {
        Some(graph) => backend.launch(streams, bound, graph)?,
        None => {
            pump.run(backend, streams, bound)?;
            capture.issued();
        }
    }
    let mut outcome = Ok(());
    for stream in streams.iter_mut() {
        outcome = outcome.and(backend.synchronize(stream));
    }
    outcome?;
    match pump.edge() {
        Some(edge)
            if plan.tasks.iter().any(|task| matches!(task.op, Op::PartialCast { .. }))
                && edge != plan.exit =>
        {
            Err(ExecError::Edge {
                rank: backend.rank(),
                program: plan.name.clone(),
                found: format!("{edge:?}"),
                promised: format!("{:?}", plan.exit),
            })
        }
        _ => Ok(()),
    }
}

/// Places of the staged buffers of one role, with their numbers.
fn staging(plan: &StepPlan, role: Role) -> impl Iterator<Item = (Region, usize)> + '_ {
    plan.arena.slots.iter().filter_map(move |slot| match slot.content {
        Content::Staging(buffer) if plan.buffers[buffer.index()].role == role => {
            Some((slot.region, buffer.index()))
        }
        _ => None,
    })
}
