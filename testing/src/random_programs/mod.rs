//! Random programs and their plans: the one generator of all suites.
//!
//! Law: a sample follows from one number, in most ways in which a program can be declared and planned;
//! `feature` names them, and a test counts that each comes up. Deliberately absent: schedules made by hand,
//! and what no plan can be made of.

mod calls;
mod collective_calls;
mod config;
mod dispatch;
mod draw;
mod expert_features;
mod experts;
mod feature;
mod gradient_features;
mod matrices;
mod matrix_features;
mod model;
mod row;
mod scale_groups;
mod slices;
mod tensor;
mod update_features;

pub use dispatch::{bound_counts, counts_beside, filled};
pub use draw::{Draw, mix};
pub use feature::features;

use warpweft_plan::layout::{StateLayout, Weights};
use warpweft_plan::model::{Accumulation, Group, Levels, Mesh, StepProgram, WeightSpec};
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan};
use warpweft_plan::policy::{ByteSize, Masters, Moments, OptimizerShard, Reduce};
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, MeshAxes};
use warpweft_session::session::costs_of;

use calls::{Ending, built, with_use};

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

/// Tells the draw of optimizer instances from the others.
const INSTANCES: u64 = 1 << 46;

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

/// How many of [`GROUPS`], its first, a mesh has that only shards and replicates.
const DATA: usize = 3;

/// How many a mesh without experts has.
const DENSE: usize = 6;

/// Those of them that tell ranks of a mesh apart.
fn groups(mesh: Mesh) -> &'static [Group] {
    match (mesh.expert(), mesh.tensor(), mesh.context()) {
        (1, 1, 1) => &GROUPS[..DATA],
        (1, ..) => &GROUPS[..DENSE],
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
        let model = model::model(draw, &mut Draw::new(mix(seed ^ FROZEN)), short);
        let ending = draw.among(&[Ending::Optimizer, Ending::Optimizer, Ending::Gradients, Ending::Nothing]);
        // Drawn beside the others, as it changes no plan.
        let dynamic = &mut Draw::new(mix(seed));
        let mut program = calls::program(draw, dynamic, &model, ending);
        let mut config = config::config(draw, &model);
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
        let instances = &mut Draw::new(mix(seed ^ INSTANCES));
        if of_any_kind && shards < 3 && config.mesh.dp_replicate > Some(1) && instances.one_in(2) {
            // Else no optimizer instance would have several replicas.
            config.mesh.dp_replicate = Some(4);
        }
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
            let in_two = MeshAxes { optimizer_instances: 2, ..config.mesh };
            let several = config.mesh.dp_replicate == Some(4) && instances.one_in(2);
            if several && (Config { mesh: in_two, ..config.clone() }).mesh_of(ranks).is_ok() {
                config.mesh = in_two;
            }
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
