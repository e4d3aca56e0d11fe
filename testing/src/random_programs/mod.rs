//! Random programs and their plans: the one generator of all suites.
//!
//! Law: a sample follows from one number, in most ways in which a program can be declared and planned;
//! `feature` names them, and a test counts that each comes up. Deliberately absent: schedules made by hand,
//! and what no plan can be made of.

mod collective_calls;
mod dispatch;
mod draw;
mod expert_features;
mod experts;
mod feature;
mod matrices;
mod matrix_features;
mod row;
mod scale_groups;
mod slices;
mod tensor;
mod update_features;

pub use dispatch::{bound_counts, counts_beside, filled};
pub use draw::{Draw, mix};
pub use feature::features;

use warpweft_base::id::WeightId;
use warpweft_format::{AmaxChoice, ElementType, Format, Orientation};
use warpweft_plan::layout::{StateLayout, Weights};
use warpweft_plan::model::{
    Access, Accumulation, BufferSpec, CallBuilder, CostHint, Form, Group, Levels, Lifetime, Mesh, Model,
    NonNegative, ParameterGroup, Phase, Placement, ProgramBuilder, Reuse, Role, StepProgram, Use, WeightSpec,
};
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan};
use warpweft_plan::policy::{
    AcrossMicroBatches, Backward, ByteSize, Columnwise, Masters, Moments, OptimizerShard, Reduce,
    ReduceDtype, ReduceEvery,
};
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, Prefetch, Scaling};
use warpweft_session::session::costs_of;

const FORMATS: [Format; 6] = [
    Format::F32,
    Format::Bf16,
    Format::NVFP4_2D,
    Format::Mxfp8,
    Format::FP8_BLOCK128_POW2,
    Format::FP8_TENSOR_E4M3,
];

/// Tells the draw of scale groups from the others of a seed.
const SCALES: u64 = 1 << 55;

/// Tells the draw of the levels in which ranks sum from the others of a seed.
const LEVELS: u64 = 1 << 57;

/// Tells the draw of how far rows end within a block from the others of a seed.
const ROWS: u64 = 1 << 58;

/// Tells the draw of which matrices a custom optimizer gets whole from the others of a seed.
const MATRICES: u64 = 1 << 59;

/// Tells the draw of what is frozen from the others of a seed.
const FROZEN: u64 = 1 << 60;

/// Tells the draw of what a step is of a step of the optimizer from the others.
const PART: u64 = 1 << 61;

/// Tells the draw of who updates weights from the others.
const RULE: u64 = 1 << 62;

/// Tells the draw of what ranks give each other from the others.
const EXCHANGES: u64 = 1 << 63;

/// Tells the draw of rows with counts from the others.
const DISPATCH: u64 = 1 << 52;

/// Tells the draw of tensor parallelism from the others.
const TENSOR: u64 = 1 << 54;

/// Tells the draw of what experts are sharded over from the others.
const EXPERTS: u64 = 1 << 53;

/// Tells the draw of which ranks share the experts from the others.
const EXPERT_PARALLEL: u64 = 1 << 51;

/// Tells the draw of who keeps optimizer state from the others.
const SLICES: u64 = 1 << 47;

/// The groups that collectives between calls may be among.
const GROUPS: [Group; 10] = [
    Group::World,
    Group::Shard,
    Group::Replicate,
    Group::Replica,
    Group::Context,
    Group::Tensor,
    Group::Expert,
    Group::ExpertShard,
    Group::ExpertReplica,
    Group::ExpertRows,
];

/// Those of them that tell ranks of a mesh apart.
fn groups(mesh: Mesh) -> &'static [Group] {
    match (mesh.expert(), mesh.tensor(), mesh.context()) {
        (1, 1, 1) => &GROUPS[..3],
        (1, ..) => &GROUPS[..6],
        _ => &GROUPS,
    }
}

/// Tells the draw of which steps take a snapshot from the others.
const SNAPSHOT: u64 = 1 << 56;

/// A program, and how it is planned.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The program.
    pub program: StepProgram,
    /// How it is planned and run.
    pub config: Config,
    /// In all replicas.
    pub ranks: u32,
    /// Who sums gradients in the plans: a session on the CPU knows one way, but its backend both.
    pub reduce: Reduce,
    /// What the planned step is of a step of the optimizer.
    pub part: Accumulation,
    /// Does the planned step take a snapshot?
    pub snapshot: bool,
}

impl Sample {
    /// The program that follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self::on_a_mesh(seed, true)
    }

    /// The same, whose ranks may sum in levels, compute parts of layers, scatter or sum in bf16 what buffers hold and
    /// take snapshots, and whose weights may share scales, or not.
    fn on_a_mesh(seed: u64, of_any_kind: bool) -> Self {
        let draw = &mut Draw::new(seed);
        let rows = &mut Draw::new(mix(seed ^ ROWS));
        // The same for all weights, so that as many have the shape of others.
        let short = if rows.one_in(2) { rows.below(32) } else { 0 };
        let model = model(draw, &mut Draw::new(mix(seed ^ FROZEN)), short);
        let ending = draw.among(&[Ending::Optimizer, Ending::Optimizer, Ending::Gradients, Ending::Nothing]);
        // Drawn beside the others, as it changes no plan.
        let dynamic = &mut Draw::new(mix(seed));
        let mut program = program(draw, dynamic, &model, ending);
        let mut config = config(draw, &model);
        let (rule, optimizer) = (&mut Draw::new(mix(seed ^ RULE)), &mut config.optimizer);
        if (optimizer.moments, optimizer.masters) == (Moments::F32, Masters::F32) && rule.one_in(2) {
            optimizer.custom_states = Some(rule.below(3) as u8);
        }
        // Adam gets no matrix whole.
        let matrices = &mut Draw::new(mix(seed ^ MATRICES));
        if optimizer.custom_states.is_some() && !matrices.one_in(4) {
            program = matrices::with_matrices(&program, config.quantize.scaling, ending, matrices);
        }
        let shards = draw.among(&[1, 2, 2, 3, 4, 5]);
        let levels = &mut Draw::new(mix(seed ^ LEVELS));
        let (shards, blocks): (u32, &[u32]) = match shards {
            4 if of_any_kind => levels.among(&[(4, &[][..]), (4, &[2])]),
            5 if of_any_kind => levels.among(&[(5, &[][..]), (6, &[3]), (8, &[2, 4])]),
            shards => (shards, &[]),
        };
        config.mesh.levels = Some(Levels::new(blocks).unwrap());
        config.mesh.dp_replicate =
            Some(if shards > 3 { draw.among(&[1, 1, 2]) } else { draw.among(&[1, 1, 2, 3]) });
        if draw.one_in(4) {
            config.prefetch.chunk = Some(ByteSize::new(draw.among(&[1, 700, 3000])));
        }
        let tensor = &mut Draw::new(mix(seed ^ TENSOR));
        let few = shards < 4 || (shards == 4 && config.mesh.dp_replicate == Some(1));
        if of_any_kind && few && tensor.one_in(3) {
            config.mesh.tp = if shards == 1 { tensor.among(&[2, 3, 4]) } else { 2 };
            let blocks: &[&[u32]] = match (shards, config.mesh.tp) {
                (4, _) => &[&[], &[4], &[2, 4]],
                (1, 4) | (2 | 3, _) => &[&[], &[2]],
                _ => &[&[]],
            };
            config.mesh.levels = Some(Levels::new(tensor.among(blocks)).unwrap());
            program = tensor::with_tensor(&program, config.mesh.tp, ending, tensor);
        }
        let scales = &mut Draw::new(mix(seed ^ SCALES));
        if of_any_kind && scales.one_in(2) {
            program = scale_groups::with_scale_groups(&program, ending, scales);
        }
        if of_any_kind && shards.is_multiple_of(2) {
            config.mesh.cp = tensor.among(&[1, 2]);
        }
        let parallel = &mut Draw::new(mix(seed ^ EXPERT_PARALLEL));
        let has_own_experts = of_any_kind && parallel.one_in(3);
        if has_own_experts && (shards, config.mesh.tp) == (4, 1) {
            // Else no mesh would have copies of an expert that each of four ranks has in parts.
            config.mesh.dp_replicate = Some(4);
        }
        let ranks = shards * config.mesh.tp * config.mesh.dp_replicate.unwrap_or(1);
        let (mesh, levels) = (config.mesh_of(ranks).unwrap(), config.mesh.levels.unwrap_or_default());
        let fits = experts::axes(mesh, levels, parallel);
        if let Some((ep, ep_shard)) = fits.filter(|_| has_own_experts) {
            (config.mesh.ep, config.mesh.ep_shard) = (ep, Some(ep_shard));
            program = experts::with_own_experts(&program, config.mesh.tp, ending, parallel);
        }
        let experts = &mut Draw::new(mix(seed ^ EXPERTS));
        if of_any_kind && config.mesh.ep == 1 && experts.one_in(3) {
            config.mesh.ep_shard = experts.of(&experts::shards(mesh, levels, 1)).copied();
            if config.mesh.ep_shard.is_some() {
                program = experts::with_experts(&program, config.mesh.tp, ending, experts);
            }
        }
        let exchanged = &mut Draw::new(mix(seed ^ EXCHANGES));
        if exchanged.one_in(3) {
            let mesh = config.mesh_of(ranks).unwrap();
            program = collective_calls::with_collectives(&program, ending, mesh, of_any_kind, exchanged);
            if of_any_kind && exchanged.one_in(2) {
                config.communicators = Some(4);
            }
        }
        let dispatched = &mut Draw::new(mix(seed ^ DISPATCH));
        if of_any_kind && dispatched.one_in(3) {
            let mesh = config.mesh_of(ranks).unwrap();
            program = dispatch::with_dispatch(&program, ending, mesh, dispatched);
        }
        let (parts, mut part) = (&mut Draw::new(mix(seed ^ PART)), Accumulation::Whole);
        if ending == Ending::Optimizer && parts.one_in(2) {
            program = program.accumulating().unwrap();
            part = parts.among(&PARTS);
        }
        let reduce = if draw.one_in(4) { Reduce::Nccl } else { Reduce::Ordered };
        let is_whole = |weight: &WeightSpec| weight.parameters.whole_matrix;
        let has_matrices = program.model().weights().iter().any(is_whole);
        let may_slice = of_any_kind && reduce == Reduce::Ordered && !has_matrices;
        if may_slice && Draw::new(mix(seed ^ SLICES)).one_in(2) {
            config.optimizer.shard = OptimizerShard::Replicas;
        }
        let snapshot = of_any_kind && Draw::new(mix(seed ^ SNAPSHOT)).one_in(4);
        let mut sample = Self { program, config, ranks, reduce, part, snapshot };
        if draw.one_in(4) {
            sample.config.memory.budget = sample.tight_budget(draw);
        }
        sample
    }

    /// A budget that some plan of the program keeps only where tasks wait for memory; `None` where it could not be
    /// smaller, or one is no plan.
    fn tight_budget(&self, draw: &mut Draw) -> Option<ByteSize> {
        let free: Vec<StepPlan> =
            self.parts().map(|part| part.plans().map(|(_, step)| step)).collect::<Result<_, _>>().ok()?;
        let live = free.iter().map(|plan| plan.bounds.live_bytes).max()?;
        let transient = free.iter().map(|plan| plan.arena.transient_bytes).max()?;
        (live < transient).then(|| ByteSize::new((live + draw.below(transient - live)) as u64))
    }

    /// The plan of the step, were there no budget.
    pub fn planned_freely(&self) -> Option<StepPlan> {
        let mut free = self.clone();
        free.config.memory.budget = None;
        free.plans().ok().map(|(_, step)| step)
    }

    /// The same program, once for each step that it has a plan for.
    pub fn parts(&self) -> impl Iterator<Item = Self> {
        let of = if self.program.is_accumulating() { &PARTS[..] } else { &PARTS[..1] };
        of.iter().map(|part| Self { part: *part, ..self.clone() })
    }

    /// The mesh of its ranks.
    pub fn mesh(&self) -> Mesh {
        self.config.mesh_of(self.ranks).unwrap()
    }

    /// How its weights lie on the mesh.
    pub fn weights(&self) -> Weights {
        Weights::new(self.program.model().weights(), self.mesh()).with_state(StateLayout::from(&self.config))
    }

    /// What casts the masters, and the step. Fails only where the policy requests what the program cannot have.
    pub fn plans(&self) -> Result<(StepPlan, StepPlan), PlanError> {
        let weights = self.weights();
        let resident = ResidentLayout::new(&weights, &[&self.program])?;
        let policy = Policy { reduce: self.reduce, ..Policy::from(&self.config) };
        let cluster = preset("h100x8-ib").unwrap().unwrap();
        let costs = costs_of(&self.config, &cluster, self.ranks).unwrap();
        let step = StepPlan::timed(&self.program.part(self.part), &weights, &resident, &policy, &costs)?;
        let step = if self.snapshot { step.with_snapshot()? } else { step };
        Ok((StepPlan::prologue(&weights, &resident, &policy)?, step))
    }
}

/// The samples with their plans, prologue and step, from `seed` on. A budget of bytes that a program cannot
/// keep is no plan, and neither are sums on a rank of gradients written in bf16.
pub fn samples(seed: u64) -> impl Iterator<Item = (u64, Sample, StepPlan, StepPlan)> {
    planned(seed, true)
}

/// The same, of which none sums in levels, has tensor parallelism or scale groups, scatters or sums in bf16 what
/// buffers hold, or takes a snapshot: plans of these are on record.
pub fn flat_samples(seed: u64) -> impl Iterator<Item = (u64, Sample, StepPlan, StepPlan)> {
    planned(seed, false)
}

fn planned(seed: u64, on_any_mesh: bool) -> impl Iterator<Item = (u64, Sample, StepPlan, StepPlan)> {
    (seed..).filter_map(move |seed| {
        let sample = Sample::on_a_mesh(seed, on_any_mesh);
        match sample.plans() {
            Ok((prologue, step)) => Some((seed, sample, prologue, step)),
            Err(PlanError::Prefetch { .. } | PlanError::Budget { .. } | PlanError::GradientSum { .. }) => {
                None
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    })
}

/// What a step of a program that accumulates may be.
const PARTS: [Accumulation; 4] =
    [Accumulation::Whole, Accumulation::First, Accumulation::Next, Accumulation::Last];

/// How a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Optimizer,
    Gradients,
    Nothing,
}

/// Weights in blocks have so many rows less than whole ones.
fn model(draw: &mut Draw, frozen: &mut Draw, short: usize) -> Model {
    let mut model = Model::builder();
    let mut ids = Vec::new();
    let (one, other) = (draw.among(&FORMATS), draw.among(&FORMATS));
    for number in 0..1 + draw.below(5) {
        let name = format!("w{number}");
        let format = if draw.one_in(3) { other } else { one };
        let (rows, cols) = (1 + draw.below(4), 1 + draw.below(3));
        let (rows, cols) = match format {
            Format::Nvfp4(_) | Format::Mxfp8 => (rows * 32 - short, cols * 32),
            _ => (rows * 7, cols * 5),
        };
        let replicated = draw.one_in(4);
        let id = if replicated {
            model.replicated(&name, rows, cols).unwrap()
        } else {
            model.sharded(&name, rows, cols, format).unwrap()
        };
        ids.push((id, replicated));
    }
    let sharded: Vec<WeightId> =
        ids.iter().filter(|(_, replicated)| !replicated).map(|(id, _)| *id).collect();
    for weight in &sharded {
        if draw.one_in(6) {
            model.reuse(*weight, draw.among(&[Reuse::Keep, Reuse::Regather])).unwrap();
        }
    }
    for weight in ids.iter().map(|(id, _)| *id) {
        if draw.one_in(4) {
            let value = |draw: &mut Draw| NonNegative::new(draw.among(&[0.0, 0.1, 3.0]));
            let weight_decay = if draw.one_in(2) { value(draw) } else { None };
            let learning_rate_scale = if draw.one_in(2) { value(draw) } else { None };
            let group = ParameterGroup { weight_decay, learning_rate_scale, ..ParameterGroup::default() };
            model.parameters(weight, group).unwrap();
        }
    }
    if frozen.one_in(4) {
        // Never all of them: some program trains.
        for (weight, _) in &ids[1..] {
            if frozen.one_in(2) {
                model.freeze(*weight).unwrap();
            }
        }
    }
    if draw.one_in(2) {
        // Groups of up to three, and weights of none.
        for (number, members) in sharded.chunks(1 + draw.below(3)).take(2).enumerate() {
            model.group(&format!("experts {number}"), members).unwrap();
        }
    }
    model.build()
}

fn config(draw: &mut Draw, model: &Model) -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.prefetch = match draw.below(8) {
        0 => Prefetch::auto(),
        1 => Prefetch::bytes(ByteSize::new(draw.among(&[20_000, 60_000, 1 << 20]))),
        _ => Prefetch::depth(draw.below(6) as u32),
    };
    config.communicators = Some(1 + draw.below(3) as u32);
    config.backward = draw.among(&[Backward::Regather, Backward::Keep]);
    config.across_micro_batches =
        draw.among(&[AcrossMicroBatches::Regather, AcrossMicroBatches::Keep, AcrossMicroBatches::Fit]);
    config.reduce_dtype = match draw.below(4) {
        0 => ReduceDtype::Bf16,
        1 => ReduceDtype::Mxfp8,
        _ => ReduceDtype::F32,
    };
    config.columnwise = draw.among(&[Columnwise::OnDemand, Columnwise::Keep]);
    config.reduce_every = draw.among(&[ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step]);
    config.optimizer.moments = if draw.one_in(6) { Moments::Bf16 } else { Moments::F32 };
    if config.optimizer.moments == Moments::Bf16 {
        config.optimizer.beta2 = 0.99;
    }
    let sharded = || model.weights().iter().filter(|weight| weight.placement == Placement::Sharded);
    let is_bf16 = sharded().all(|weight| weight.format == Format::Bf16);
    if is_bf16 && sharded().next().is_some() && draw.one_in(2) {
        config.optimizer.masters = Masters::Bf16Remainder;
    }
    let has_history = |weight: &WeightSpec| weight.format == Format::FP8_TENSOR_E4M3 && !weight.frozen;
    if sharded().any(has_history) && draw.one_in(2) {
        config.quantize.scaling = Scaling::Delayed;
        (config.quantize.amax_history, config.quantize.amax_choice) = (3, AmaxChoice::Latest);
    }
    config.reduce_delay = draw.among(&[1, 2, 2, 2, 3, 7, 16]);
    config.derive_ahead = draw.among(&[false, false, true]);
    config
}

/// What is known of the buffers while calls are declared.
struct Buffers {
    specs: Vec<BufferSpec>,
    filled: Vec<bool>,
    written: Vec<bool>,
    read: Vec<bool>,
    taken: Vec<bool>,
}

fn program(draw: &mut Draw, dynamic: &mut Draw, model: &Model, ending: Ending) -> StepProgram {
    let has_dynamic = dynamic.one_in(3);
    let trains = ending != Ending::Nothing;
    let mut program = StepProgram::builder("step", model);
    program.micro_batches(draw.among(&[1, 1, 2, 3])).unwrap();
    let specs: Vec<BufferSpec> = (0..1 + draw.below(5)).map(|number| buffer(draw, number)).collect();
    let ids: Vec<_> = specs.iter().map(|spec| program.buffer(spec.clone()).unwrap()).collect();
    let begins = |spec: &BufferSpec| spec.role == Role::Input || spec.lifetime == Lifetime::Carried;
    let mut buffers = Buffers {
        filled: specs.iter().map(begins).collect(),
        written: vec![false; specs.len()],
        read: vec![false; specs.len()],
        taken: vec![false; specs.len()],
        specs,
    };
    let mut owed = vec![trains; model.weights().len()];
    let calls = 1 + draw.below(8);
    let mut done: Vec<Vec<Use>> = Vec::new();
    for number in 0..calls {
        let is_last = number + 1 == calls;
        let phase = if number * 2 < calls && !is_last { Phase::Forward } else { Phase::Backward };
        let mut call = program.call(&format!("c{number}"), phase);
        let uses = match draw.of(&done) {
            // A call replayed, or recomputed in backward.
            Some(again) if draw.one_in(4) => again.clone(),
            _ => (0..draw.below(4)).map(|_| a_use(draw, model)).collect(),
        };
        call = uses.iter().fold(call, |call, usage| with_use(call, *usage));
        done.push(uses);
        for (weight, spec) in model.entries() {
            if trains && (draw.one_in(3) || is_last && owed[weight.index()]) {
                // Drawn for frozen weights too, so that freezing them changes nothing else of the program.
                let element = element(draw, spec);
                if !spec.frozen {
                    call = call.gradient_in(weight, element);
                }
                owed[weight.index()] = false;
            }
        }
        for (position, access) in accesses(draw, &mut buffers, is_last) {
            call = call.accesses(ids[position], access);
        }
        call = call.cost(CostHint { flops: 1 << draw.below(34), ..CostHint::default() });
        if has_dynamic && dynamic.one_in(3) {
            call = call.dynamic();
        }
        call.add().unwrap();
    }
    built(program, ending)
}

fn built(program: ProgramBuilder, ending: Ending) -> StepProgram {
    match ending {
        Ending::Optimizer => program.build_training().unwrap(),
        Ending::Gradients => program.build_gradients().unwrap(),
        Ending::Nothing => program.build_evaluation().unwrap(),
    }
}

/// In what a call writes a gradient: one in four of a sharded weight in bf16.
fn element(draw: &mut Draw, spec: &WeightSpec) -> ElementType {
    match spec.placement == Placement::Sharded && draw.one_in(4) {
        true => ElementType::Bf16,
        false => ElementType::F32,
    }
}

/// What the next call does with the buffers: anything that program order allows.
fn accesses(draw: &mut Draw, buffers: &mut Buffers, is_last: bool) -> Vec<(usize, Access)> {
    let mut chosen = Vec::new();
    for position in 0..buffers.specs.len() {
        let (role, lifetime) = (buffers.specs[position].role, buffers.specs[position].lifetime);
        let owed = is_last && role == Role::Output && !buffers.written[position] && !buffers.taken[position];
        if !owed && !draw.one_in(2) {
            // An input or an activation that no call reads is refused, but for one of backward.
            let is_activation = (role, lifetime) == (Role::Internal, Lifetime::Step);
            if is_last && (role == Role::Input || is_activation) && !buffers.read[position] {
                let access = if buffers.filled[position] { Access::Read } else { Access::Write };
                chosen.push((position, access));
            }
            continue;
        }
        if lifetime == Lifetime::Call && std::mem::replace(&mut buffers.taken[position], true) {
            continue;
        }
        let access = match draw.among(&[Access::Read, Access::Write, Access::Update]) {
            _ if role == Role::Input => Access::Read,
            _ if owed || lifetime == Lifetime::Call || !buffers.filled[position] => Access::Write,
            wanted => wanted,
        };
        buffers.filled[position] |= access.writes();
        buffers.written[position] |= access.writes();
        buffers.read[position] |= access.reads();
        chosen.push((position, access));
    }
    chosen
}

fn buffer(draw: &mut Draw, number: usize) -> BufferSpec {
    BufferSpec {
        name: format!("b{number}"),
        elements: 1 + number * 97,
        element: ElementType::F32,
        role: draw.among(&[Role::Internal, Role::Input, Role::Output]),
        lifetime: draw.among(&[Lifetime::Step, Lifetime::Step, Lifetime::Call, Lifetime::Carried]),
    }
}

/// A use of some weight in an orientation and form that it can serve.
fn a_use(draw: &mut Draw, model: &Model) -> Use {
    let weights: Vec<_> = model.entries().collect();
    let (weight, spec) = weights[draw.below(weights.len())];
    let (orientation, form, reuse) = (Orientation::Rowwise, Form::Dense, None);
    if spec.placement == Placement::Replicated {
        return Use { weight, orientation, form, reuse };
    }
    let orientation = draw.among(&[Orientation::Rowwise, Orientation::Columnwise]);
    let form = draw.among(&[Form::Planes, Form::Dense, Form::DenseBf16]);
    let reuse = draw.among(&[Some(Reuse::Keep), Some(Reuse::Regather), None, None, None, None]);
    Use { weight, orientation, form, reuse }
}

fn with_use<'p>(call: CallBuilder<'p>, usage: Use) -> CallBuilder<'p> {
    let call = call.uses(usage.weight, usage.orientation, usage.form);
    match usage.reuse {
        Some(reuse) => call.reuse(reuse),
        None => call,
    }
}
