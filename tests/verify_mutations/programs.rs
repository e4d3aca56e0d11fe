//! Random programs, in most ways a program can be declared and planned.
//!
//! Law: may come up: weights tied and replayed, grouped ones, replicated ones, every kind of format, buffers of
//! every role and lifetime, micro-batches, one shard to four in one replica to three; and of the planner every policy, one communicator or two, planes kept or
//! gathered again per use and per configuration, gradients reduced one by one or together, in f32 or bf16, every layout of optimizer state.
//! Never: programs that reduce gradients without an optimizer (`build_gradients`), reuse declared of a weight, schedules made by hand.

use warpweft::cluster::preset;
use warpweft::config::{
    AcrossMicroBatches, Backward, ByteSize, Columnwise, Config, Masters, Moments, Prefetch, ReduceDtype,
    ReduceEvery, Scaling,
};
use warpweft::format::{AmaxChoice, ElementType, Format, Orientation};
use warpweft::id::WeightId;
use warpweft::layout::{StateLayout, Weights};
use warpweft::model::{
    Access, BufferSpec, CallBuilder, CostHint, Form, Lifetime, Mesh, Model, Phase, Placement, Reuse, Role,
    StepProgram,
};
use warpweft::plan::{PlanError, Policy, ResidentLayout, StepPlan};
use warpweft::session::costs_of;

use crate::draw::Draw;

const FORMATS: [Format; 6] = [
    Format::F32,
    Format::Bf16,
    Format::NVFP4_2D,
    Format::Mxfp8,
    Format::FP8_BLOCK128_POW2,
    Format::FP8_TENSOR_E4M3,
];

/// A program, and how it is planned.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) program: StepProgram,
    pub(crate) config: Config,
    /// In all replicas.
    pub(crate) ranks: u32,
}

impl Sample {
    /// The program that follows from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        let draw = &mut Draw::new(seed);
        let model = model(draw);
        let trains = !draw.one_in(4);
        let program = program(draw, &model, trains);
        let mut config = config(draw, &model);
        let shards = draw.among(&[1, 2, 2, 3, 4]);
        config.mesh.replicate = draw.among(&[1, 1, 2, 3]);
        let ranks = shards * config.mesh.replicate;
        Self { program, config, ranks }
    }

    pub(crate) fn mesh(&self) -> Mesh {
        self.config.mesh_of(self.ranks).unwrap()
    }

    pub(crate) fn weights(&self) -> Weights {
        Weights::new(self.program.model().weights(), self.mesh()).with_state(StateLayout::from(&self.config))
    }

    /// What casts the masters, and the step. Fails only where the policy asks for what the program cannot have.
    pub(crate) fn plans(&self) -> Result<(StepPlan, StepPlan), PlanError> {
        let weights = self.weights();
        let resident = ResidentLayout::new(&weights, &[&self.program])?;
        let policy = Policy::from(&self.config);
        let cluster = preset("h100x8-ib").unwrap().unwrap();
        let costs = costs_of(&self.config, &cluster, self.ranks).unwrap();
        let step = StepPlan::timed(&self.program, &weights, &resident, &policy, &costs)?;
        Ok((StepPlan::prologue(&weights, &resident, &policy)?, step))
    }
}

fn model(draw: &mut Draw) -> Model {
    let mut model = Model::builder();
    let mut ids = Vec::new();
    let (one, other) = (draw.among(&FORMATS), draw.among(&FORMATS));
    for number in 0..1 + draw.below(4) {
        let name = format!("w{number}");
        let format = if draw.one_in(3) { other } else { one };
        let (rows, cols) = (1 + draw.below(4), 1 + draw.below(3));
        let (rows, cols) = match format {
            Format::Nvfp4(_) | Format::Mxfp8 => (rows * 32, cols * 32),
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
    if draw.one_in(2) {
        let sharded: Vec<WeightId> =
            ids.into_iter().filter(|(_, replicated)| !replicated).map(|(id, _)| id).collect();
        model.group("experts", &sharded[sharded.len().saturating_sub(3)..]).unwrap();
    }
    model.build()
}

fn config(draw: &mut Draw, model: &Model) -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.prefetch = match draw.below(8) {
        0 => Prefetch::auto(),
        1 => Prefetch::bytes(ByteSize::new(draw.among(&[20_000, 60_000, 1 << 20]))),
        _ => Prefetch::depth(draw.below(5) as u32),
    };
    config.communicators = 1 + draw.below(2) as u32;
    config.backward = draw.among(&[Backward::Regather, Backward::Keep]);
    config.across_micro_batches =
        draw.among(&[AcrossMicroBatches::Regather, AcrossMicroBatches::Keep, AcrossMicroBatches::Fit]);
    config.reduce_dtype = if draw.one_in(4) { ReduceDtype::Bf16 } else { ReduceDtype::F32 };
    config.columnwise = draw.among(&[Columnwise::OnDemand, Columnwise::Keep]);
    config.reduce_every = draw.among(&[ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step]);
    config.optimizer.moments = if draw.one_in(6) { Moments::Bf16 } else { Moments::F32 };
    let sharded = || model.weights().iter().filter(|weight| weight.placement == Placement::Sharded);
    let is_bf16 = sharded().all(|weight| weight.format == Format::Bf16);
    if is_bf16 && sharded().next().is_some() && draw.one_in(2) {
        config.optimizer.masters = Masters::Bf16Remainder;
    }
    if sharded().any(|weight| weight.format == Format::FP8_TENSOR_E4M3) && draw.one_in(2) {
        config.quantize.scaling = Scaling::Delayed;
        (config.quantize.amax_history, config.quantize.amax_choice) = (3, AmaxChoice::Latest);
    }
    config
}

/// What is known of the buffers while calls are declared.
struct Buffers {
    specs: Vec<BufferSpec>,
    filled: Vec<bool>,
    written: Vec<bool>,
    taken: Vec<bool>,
}

fn program(draw: &mut Draw, model: &Model, trains: bool) -> StepProgram {
    let mut program = StepProgram::builder("step", model);
    program.micro_batches(draw.among(&[1, 1, 2, 3])).unwrap();
    let specs: Vec<BufferSpec> = (0..1 + draw.below(5)).map(|number| buffer(draw, number)).collect();
    let ids: Vec<_> = specs.iter().map(|spec| program.buffer(spec.clone()).unwrap()).collect();
    let begins = |spec: &BufferSpec| spec.role == Role::Input || spec.lifetime == Lifetime::Carried;
    let mut buffers = Buffers {
        filled: specs.iter().map(begins).collect(),
        written: vec![false; specs.len()],
        taken: vec![false; specs.len()],
        specs,
    };
    let mut owed = vec![trains; model.weights().len()];
    let calls = 1 + draw.below(6);
    for number in 0..calls {
        let is_last = number + 1 == calls;
        let phase = if number * 2 < calls { Phase::Forward } else { Phase::Backward };
        let mut call = program.call(&format!("c{number}"), phase);
        for _ in 0..draw.below(3) {
            call = uses(draw, call, model);
        }
        for (weight, _) in model.entries() {
            if trains && (draw.one_in(3) || is_last && owed[weight.index()]) {
                call = call.gradient(weight);
                owed[weight.index()] = false;
            }
        }
        for (position, access) in accesses(draw, &mut buffers, is_last) {
            call = call.accesses(ids[position], access);
        }
        call.cost(CostHint { flops: 1 << draw.below(34), ..CostHint::default() }).add().unwrap();
    }
    if trains { program.build_training().unwrap() } else { program.build_evaluation().unwrap() }
}

/// What the next call does with the buffers: anything that program order allows.
fn accesses(draw: &mut Draw, buffers: &mut Buffers, is_last: bool) -> Vec<(usize, Access)> {
    let mut chosen = Vec::new();
    for position in 0..buffers.specs.len() {
        let (role, lifetime) = (buffers.specs[position].role, buffers.specs[position].lifetime);
        let owed = is_last && role == Role::Output && !buffers.written[position] && !buffers.taken[position];
        if !owed && !draw.one_in(2) {
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
fn uses<'p>(draw: &mut Draw, call: CallBuilder<'p>, model: &Model) -> CallBuilder<'p> {
    let weights: Vec<_> = model.entries().collect();
    let (id, spec) = weights[draw.below(weights.len())];
    if spec.placement == Placement::Replicated {
        return call.uses(id, Orientation::Rowwise, Form::Dense);
    }
    let orientation = draw.among(&[Orientation::Rowwise, Orientation::Columnwise]);
    let call = call.uses(id, orientation, draw.among(&[Form::Planes, Form::Dense, Form::DenseBf16]));
    match draw.below(6) {
        0 => call.reuse(Reuse::Keep),
        1 => call.reuse(Reuse::Regather),
        _ => call,
    }
}
