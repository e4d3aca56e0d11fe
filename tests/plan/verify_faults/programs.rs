//! Programs whose plans the faults are seeded into; between them they contain every op.

use warpweft_base::id::{BufferId, SlotId, WeightId};
use warpweft_format::{AmaxChoice, ElementType, Format, Orientation, Via};
use warpweft_plan::layout::{
    Delayed, OptimizerSettings, Region, Residency, Settings, Slot, StateLayout, Weights,
};
use warpweft_plan::model::{Accumulation, Form, Mesh, Model, Phase, ProgramBuilder, StepProgram};
use warpweft_plan::op::{AllReduce, FusedScale, Op, PartialAmax, PartialCast};
use warpweft_plan::plan::{BoundaryState, GatherStart, Policy, ResidentLayout, StepPlan};
use warpweft_plan::policy::{
    AcrossMicroBatches, AdamMode, Backward, Columnwise, Masters, Reduce, ReduceDtype, ReduceEvery,
};

use super::collective_calls::exchanging_training;
use super::edit::{recount, serialize};
use super::matrices::by_matrices;

use Orientation::{Columnwise as Cols, Rowwise as Rows};

/// Two communicators, gathers two calls ahead, regather in backward, columnwise planes on demand.
pub(crate) fn policy() -> Policy {
    Policy {
        prefetch: GatherStart::Depth(2),
        chunk: None,
        budget: None,
        communicators: 2,
        backward: Backward::Regather,
        across_micro_batches: AcrossMicroBatches::default(),
        reduce_every: ReduceEvery::default(),
        reduce_delay: 2,
        derive_ahead: false,
        reduce_dtype: ReduceDtype::default(),
        reduce: Reduce::default(),
        columnwise: Columnwise::OnDemand,
        settings: Settings {
            via: Via::Bf16,
            optimizer: OptimizerSettings {
                mode: AdamMode::AdamW,
                epsilon: 1e-8,
                bias_correction: true,
                max_norm: 1.0,
            },
        },
    }
}

pub(crate) fn plan(program: &StepProgram, ranks: u32) -> StepPlan {
    StepPlan::build(program, &policy(), Mesh::new(ranks).unwrap()).unwrap()
}

/// Plans whose collectives sum gradients by themselves.
pub(crate) mod by_collectives {
    use super::*;

    fn plan(program: &StepProgram, ranks: u32) -> StepPlan {
        let policy = Policy { reduce: Reduce::Nccl, ..policy() };
        StepPlan::build(program, &policy, Mesh::new(ranks).unwrap()).unwrap()
    }

    pub(crate) fn f32_training() -> StepPlan {
        plan(&f32_program(), 2)
    }

    pub(crate) fn nvfp4_training() -> StepPlan {
        plan(&training_program(Format::NVFP4_2D), 4)
    }

    pub(crate) fn mxfp8_training() -> StepPlan {
        plan(&training_program(Format::Mxfp8), 4)
    }

    pub(crate) fn part(part: Accumulation) -> StepPlan {
        plan(&training_part(part), 4)
    }
}

/// A training step in f32 on 2 ranks: uneven rows, a replicated bias with two gradients, an input,
/// an output and a carried buffer.
pub(crate) fn f32_training() -> StepPlan {
    plan(&f32_program(), 2)
}

fn f32_program() -> StepProgram {
    let mut model = Model::builder();
    let up = model.sharded("up", 33, 16, Format::F32).unwrap();
    let down = model.sharded("down", 16, 33, Format::F32).unwrap();
    let bias = model.replicated("bias", 1, 16).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let Io { tokens, loss, average } = io(&mut program);
    let hidden = program.activation("hidden", 8 * 33).unwrap();
    let error = program.activation("error", 8 * 16).unwrap();
    let call = program.call("up.forward", Phase::Forward).uses(up, Rows, Form::Dense);
    call.reads(tokens).writes(hidden).add().unwrap();
    let call = program.call("down.forward", Phase::Forward).uses(down, Rows, Form::Dense).uses(
        bias,
        Rows,
        Form::Dense,
    );
    call.reads(hidden).writes(error).gradient(bias).add().unwrap();
    let call = program.call("loss", Phase::Forward).updates(error).writes(loss).updates(average);
    call.add().unwrap();
    let call = program.call("down.backward", Phase::Backward).uses(down, Cols, Form::Dense);
    call.reads(error).updates(hidden).gradient(down).gradient(bias).add().unwrap();
    let call = program.call("up.backward", Phase::Backward).uses(up, Cols, Form::Dense);
    call.reads(hidden).reads(tokens).gradient(up).add().unwrap();
    program.build_training().unwrap()
}

/// A training step in NVFP4 on 4 ranks: columnwise planes and dense copies, a replicated norm, and
/// an embedding that three calls use and two give a gradient.
pub(crate) fn nvfp4_training() -> StepPlan {
    plan(&training_program(Format::NVFP4_2D), 4)
}

/// The same in FP8, whose shards are cast by the update.
pub(crate) fn fp8_training() -> StepPlan {
    plan(&training_program(Format::FP8_BLOCK128_POW2), 4)
}

/// The same in MXFP8, whose shards are stored in both orientations.
pub(crate) fn mxfp8_training() -> StepPlan {
    plan(&training_program(Format::Mxfp8), 4)
}

/// The training step in NVFP4 as one of several whose gradients are accumulated.
pub(crate) fn part(part: Accumulation) -> StepPlan {
    plan(&training_part(part), 4)
}

/// The same on 2 shards × 2 replicas.
pub(crate) fn replicated_part(part: Accumulation) -> StepPlan {
    StepPlan::build(&training_part(part), &policy(), Mesh::hybrid(4, 2).unwrap()).unwrap()
}

fn training_part(part: Accumulation) -> StepProgram {
    training_program(Format::NVFP4_2D).accumulating().unwrap().part(part)
}

/// Forward only, in NVFP4, on 3 ranks.
pub(crate) fn evaluation() -> StepPlan {
    plan(&evaluation_program(), 3)
}

/// What quantizes the masters before the evaluation's first step.
pub(crate) fn prologue() -> StepPlan {
    let program = evaluation_program();
    let weights = Weights::new(program.model().weights(), Mesh::new(3).unwrap());
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    StepPlan::prologue(&weights, &resident, &policy()).unwrap()
}

/// Every plan above, with its name.
pub(crate) fn all() -> Vec<(&'static str, StepPlan)> {
    vec![
        ("f32 training", f32_training()),
        ("nvfp4 training", nvfp4_training()),
        ("mxfp8 training", mxfp8_training()),
        ("fp8 training", fp8_training()),
        ("training summed by collectives", by_collectives::nvfp4_training()),
        ("chunked training", chunked_training()),
        ("accumulating training", accumulating_training()),
        ("replicated training", replicated_training()),
        ("exchanging training", exchanging_training()),
        ("first step of a sum", part(Accumulation::First)),
        ("next step of a sum", part(Accumulation::Next)),
        ("last step of a sum", part(Accumulation::Last)),
        ("split training", split_training()),
        ("delayed training", delayed_training()),
        ("delayed prologue", delayed_prologue()),
        ("training by a custom optimizer", own_training()),
        ("training by a rule of whole matrices", by_matrices(1)),
        ("evaluation", evaluation()),
        ("prologue", prologue()),
        ("quantize then evaluate", quantize_then_evaluate()),
    ]
}

struct Io {
    tokens: BufferId,
    loss: BufferId,
    average: BufferId,
}

fn io(program: &mut ProgramBuilder) -> Io {
    Io {
        tokens: program.input("tokens", 64, ElementType::F32).unwrap(),
        loss: program.output("loss", 1, ElementType::F32).unwrap(),
        average: program.carried("average loss", 1, ElementType::F32).unwrap(),
    }
}

/// An embedding, two blocks and a replicated norm.
struct Quantized {
    model: Model,
    embedding: WeightId,
    blocks: [WeightId; 2],
    norm: WeightId,
}

fn quantized_model(of_embedding: Format, format: Format) -> Quantized {
    let mut model = Model::builder();
    let embedding = model.sharded("embedding", 96, 64, of_embedding).unwrap();
    let blocks = ["block.0", "block.1"].map(|name| model.sharded(name, 160, 64, format).unwrap());
    let norm = model.replicated("norm", 1, 64).unwrap();
    Quantized { model: model.build(), embedding, blocks, norm }
}

/// The same in bf16, each shard the upper half of its master.
pub(crate) fn split_training() -> StepPlan {
    let state = StateLayout { masters: Masters::Bf16Remainder, ..StateLayout::default() };
    plans_with(&training_program(Format::Bf16), state).1
}

/// The same with blocks in per-tensor FP8 whose scaling is delayed, beside an embedding in NVFP4.
pub(crate) fn delayed_training() -> StepPlan {
    delayed().1
}

/// What casts the masters of that program anew.
pub(crate) fn delayed_prologue() -> StepPlan {
    delayed().0
}

/// Bucket 0 is the embedding, bucket 1 the blocks.
fn delayed() -> (StepPlan, StepPlan) {
    let settings = Delayed { history: 4, choice: AmaxChoice::Largest };
    let state = StateLayout { delayed: Some(settings), ..StateLayout::default() };
    plans_with(&mixed_program(Format::NVFP4_2D, Format::FP8_TENSOR_E4M3), state)
}

/// The training step in NVFP4, its weights updated by a custom optimizer that keeps one list.
pub(crate) fn own_training() -> StepPlan {
    let state = StateLayout { custom_states: Some(1), ..StateLayout::default() };
    plan_of_state(&training_program(Format::NVFP4_2D), state)
}

/// The step of a program on four ranks that keep this state.
pub(crate) fn plan_of_state(program: &StepProgram, state: StateLayout) -> StepPlan {
    plans_with(program, state).1
}

/// Prologue and step.
fn plans_with(program: &StepProgram, state: StateLayout) -> (StepPlan, StepPlan) {
    let weights = Weights::new(program.model().weights(), Mesh::new(4).unwrap()).with_state(state);
    let resident = ResidentLayout::new(&weights, &[program]).unwrap();
    let prologue = StepPlan::prologue(&weights, &resident, &policy()).unwrap();
    (prologue, StepPlan::within(program, &weights, &resident, &policy()).unwrap())
}

fn training_program(format: Format) -> StepProgram {
    mixed_program(format, format)
}

/// The same in NVFP4, its calls repeated for every micro-batch.
pub(crate) fn accumulating_program(micro_batches: u32) -> StepProgram {
    repeated_program(Format::NVFP4_2D, Format::NVFP4_2D, micro_batches)
}

/// Two micro-batches, whose gradients are added before they are reduced.
pub(crate) fn accumulating_training() -> StepPlan {
    let policy = Policy { reduce_every: ReduceEvery::Step, ..policy() };
    StepPlan::build(&accumulating_program(2), &policy, Mesh::new(4).unwrap()).unwrap()
}

/// Its gathers in chunks of a kilobyte of all four ranks.
pub(crate) fn chunked_training() -> StepPlan {
    let policy = Policy { chunk: Some(1024), ..policy() };
    StepPlan::build(&training_program(Format::NVFP4_2D), &policy, Mesh::new(4).unwrap()).unwrap()
}

/// Two micro-batches on 2 shards × 2 replicas.
pub(crate) fn replicated_training() -> StepPlan {
    StepPlan::build(&accumulating_program(2), &policy(), Mesh::hybrid(4, 2).unwrap()).unwrap()
}

fn mixed_program(of_embedding: Format, format: Format) -> StepProgram {
    repeated_program(of_embedding, format, 1)
}

fn repeated_program(of_embedding: Format, format: Format, micro_batches: u32) -> StepProgram {
    let Quantized { model, embedding, blocks, norm } = quantized_model(of_embedding, format);
    let mut program = StepProgram::builder("train", &model);
    program.micro_batches(micro_batches).unwrap();
    let Io { tokens, loss, average } = io(&mut program);
    let hidden = program.activation("hidden", 512).unwrap();
    let error = program.activation("error", 512).unwrap();
    let call = program.call("embed", Phase::Forward).uses(embedding, Rows, Form::Dense);
    call.reads(tokens).writes(hidden).add().unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let call =
            program.call(&format!("block.{number}.forward"), Phase::Forward).uses(*block, Rows, Form::Planes);
        call.uses(norm, Rows, Form::Dense).updates(hidden).add().unwrap();
    }
    let call = program.call("head", Phase::Forward).uses(embedding, Rows, Form::Planes);
    call.reads(hidden).writes(error).writes(loss).updates(average).add().unwrap();
    let call = program.call("head.backward", Phase::Backward).uses(embedding, Cols, Form::Planes);
    call.updates(error).reads(hidden).gradient(embedding).add().unwrap();
    for (number, block) in blocks.iter().enumerate().rev() {
        let call = program.call(&format!("block.{number}.backward"), Phase::Backward).uses(
            *block,
            Cols,
            Form::Dense,
        );
        call.updates(error).reads(hidden).gradient(*block).gradient(norm).add().unwrap();
    }
    let call = program.call("embed.backward", Phase::Backward);
    call.reads(error).reads(tokens).gradient(embedding).add().unwrap();
    program.build_training().unwrap()
}

fn evaluation_program() -> StepProgram {
    let Quantized { model, embedding, blocks, norm } = quantized_model(Format::NVFP4_2D, Format::NVFP4_2D);
    let mut program = StepProgram::builder("eval", &model);
    let Io { tokens, loss, average } = io(&mut program);
    let hidden = program.activation("hidden", 512).unwrap();
    let call = program.call("embed", Phase::Forward).uses(embedding, Rows, Form::Dense);
    call.reads(tokens).writes(hidden).add().unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let call = program.call(&format!("block.{number}"), Phase::Forward).uses(*block, Rows, Form::Planes);
        call.uses(norm, Rows, Form::Dense).updates(hidden).add().unwrap();
    }
    let call = program.call("head", Phase::Forward).uses(embedding, Rows, Form::Planes);
    call.reads(hidden).writes(loss).updates(average).add().unwrap();
    program.build_evaluation().unwrap()
}

/// The evaluation with its quantizing in front: it begins with shards one version behind the
/// masters, casts them, then runs. All tasks in one row, each waiting for the one before.
pub(crate) fn quantize_then_evaluate() -> StepPlan {
    let (front, mut plan) = (prologue(), evaluation());
    let common = front.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident).count();
    let (slots, bytes) = (plan.arena.slots.len(), plan.arena.transient_bytes);
    let moved = |slot: SlotId| {
        if slot.index() < common { slot } else { SlotId::at(slot.index() - common + slots) }
    };
    for slot in &front.arena.slots[common..] {
        let offset = plan.arena.resident_bytes + bytes + slot.region.offset - front.arena.resident_bytes;
        plan.arena.slots.push(Slot { region: Region { offset, ..slot.region }, ..slot.clone() });
    }
    plan.arena.transient_bytes += front.arena.transient_bytes;
    let mut tasks = front.tasks.clone();
    for task in &mut tasks {
        redirect(&mut task.op, moved);
    }
    plan.tasks.splice(0..0, tasks);
    let version = plan.entry.masters.next();
    plan.entry = BoundaryState { masters: version, shards: Some(plan.entry.masters) };
    plan.exit = BoundaryState { masters: version, shards: Some(version) };
    serialize(&mut plan);
    recount(&mut plan);
    plan
}

/// Lets a quantizing op name other slots.
fn redirect(op: &mut Op, moved: impl Fn(SlotId) -> SlotId) {
    let each = |slots: Vec<&mut SlotId>| slots.into_iter().for_each(|slot| *slot = moved(*slot));
    match op {
        Op::PartialAmax(PartialAmax { masters, block_amax, tensor_amax, .. }) => {
            each(masters.iter_mut().chain([block_amax, tensor_amax]).collect());
        }
        Op::AllReduce(AllReduce { pairs, .. }) => {
            each(pairs.iter_mut().flat_map(|(from, to)| [from, to]).collect())
        }
        Op::FusedScale(FusedScale { block_amax, tensor_amax, encode, tensor_scale, shards, .. }) => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            each([block_amax, tensor_amax, encode, tensor_scale].into_iter().chain(shards).collect());
        }
        Op::PartialCast(PartialCast { masters, encode, shards, .. }) => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            each(masters.iter_mut().chain(encode).chain(shards).collect());
        }
        other => panic!("a prologue has no {}", other.name()),
    }
}
