//! Tensor parallelism in split sessions: groups of ranks inside of a process, and across several.
//!
//! Law: each session owns a part of the ranks, as a process does, and has the losses and the weights of one that owns
//! all, bit for bit.

use std::sync::Arc;

use half::bf16;
use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld};
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{
    Call, Collective, CollectiveKind, Form, Group, Model, Phase, ProgramBuilder, StepProgram, TensorParallel,
};
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::Config;
use warpweft_session::session::Session;
use warpweft_testing::port::Port;
use warpweft_testing::split::{config, join};
use warpweft_testing::trainer::initial;

/// Columns of the weights, and elements that a rank has of an activation.
const WIDTH: usize = 16;
const STEPS: u32 = 3;

/// A fused weight and one of columns, one of split tokens and one of alike ones.
fn model() -> Model {
    let mut model = Model::builder();
    let qkv = model.sharded("qkv", 256, WIDTH, Format::NVFP4_2D).unwrap();
    model.column_parallel_of(qkv, &[128, 64, 64]).unwrap();
    for (name, cols, how) in [
        ("out", 4 * WIDTH, TensorParallel::RowParallel),
        ("embedding", WIDTH, TensorParallel::SplitTokens),
        ("router", WIDTH, TensorParallel::AlikeTokens),
    ] {
        let weight = model.sharded(name, 40, cols, Format::NVFP4_2D).unwrap();
        model.tensor_parallel(weight, how).unwrap();
    }
    model.build()
}

/// Activations are gathered, what is made of them is summed and scattered in f32, and summed for all in bf16.
fn program(model: &Model, tensor: usize) -> StepProgram {
    let mut program = StepProgram::builder("train", model);
    let own = program.input("own", WIDTH, ElementType::F32).unwrap();
    let all = program.activation("all", tensor * WIDTH).unwrap();
    let parts = program.activation("parts", tensor * WIDTH).unwrap();
    let got = program.activation("got", WIDTH).unwrap();
    let [halves, sums] =
        ["halves", "sums"].map(|name| program.activation_in(name, WIDTH, ElementType::Bf16).unwrap());
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let collective = |program: &mut ProgramBuilder, name: &str, kind, from, to| {
        let collective = Collective::new(kind, from, to).among(Group::Tensor);
        program.collective(name, Phase::Forward, collective).unwrap();
    };
    collective(&mut program, "gather", CollectiveKind::AllGather, own, all);
    let qkv = model.find("qkv").unwrap();
    let call = program.call("forward", Phase::Forward).uses(qkv, Orientation::Rowwise, Form::Dense);
    call.reads(all).writes(parts).writes(halves).add().unwrap();
    collective(&mut program, "scatter", CollectiveKind::ReduceScatter, parts, got);
    collective(&mut program, "sum", CollectiveKind::Sum, halves, sums);
    let mut call = program.call("backward", Phase::Backward).reads(got).reads(sums).writes(loss);
    for (weight, _) in model.entries() {
        call = call.uses(weight, Orientation::Rowwise, Form::Dense).gradient(weight);
    }
    call.add().unwrap();
    program.build_training().unwrap()
}

fn run(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    if call.name == "forward" {
        let (weight, all) = (context.dense_named("qkv")?, context.read_named::<f32>("all")?);
        let mut parts = context.write_named::<f32>("parts")?;
        for (at, (part, value)) in parts.iter_mut().zip(all.iter()).enumerate() {
            *part = weight.iter().skip(at % WIDTH).step_by(WIDTH).map(|weight| weight * value).sum();
        }
        let mut halves = context.write_named::<bf16>("halves")?;
        halves.iter_mut().zip(parts.iter()).for_each(|(half, part)| *half = bf16::from_f32(*part));
        return Ok(());
    }
    let (got, sums) = (context.read_named::<f32>("got")?, context.read_named::<bf16>("sums")?);
    context.write_named::<f32>("loss")?[0] = got.iter().map(|value| value * value).sum();
    for name in ["qkv", "out", "embedding", "router"] {
        let weight = context.dense_named(name)?;
        let mut gradient = context.gradient_named(name)?;
        for (at, (gradient, weight)) in gradient.iter_mut().zip(weight.iter()).enumerate() {
            // The sums are those of the whole group.
            let own = if name == "router" { 0.0 } else { got[at % WIDTH] };
            *gradient = weight + own + sums[at % WIDTH].to_f32();
        }
    }
    Ok(())
}

/// Bits of the losses of a process, and the weights where rank 0 is.
async fn trained(mut session: Session) -> (Vec<u32>, Option<Checkpoint>) {
    let mut losses = Vec::new();
    for step in 0..STEPS {
        for rank in session.own_ranks() {
            let value = |at: usize| ((at * 7 + rank.index() * 5 + step as usize * 3) % 11) as f32 - 5.0;
            let values: Vec<f32> = (0..WIDTH).map(value).collect();
            session.write_input("train", rank, "own", &values).unwrap();
        }
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits());
    }
    let exported = session.export_to_first().await.unwrap();
    session.close().await.unwrap();
    (losses, exported)
}

/// What each of the processes has, which own so many ranks.
fn in_processes(config: &Config, ranks: &[u32]) -> Vec<(Vec<u32>, Option<Checkpoint>)> {
    let mesh = config.mesh_of(ranks.iter().sum()).unwrap();
    let device = Arc::new(CpuWorld::new(mesh, CpuOptions::default()).unwrap());
    let (port, processes) = (Port::claim(), ranks.len() as u32);
    let number = port.number();
    let model = model();
    let threads: Vec<_> = (0..processes)
        .zip(ranks.to_vec())
        .map(|(process, ranks)| {
            let (device, program) = (Arc::clone(&device), program(&model, config.mesh.tp as usize));
            let builder = Session::builder(config.clone(), |_: RankId| run).program(program);
            let builder = builder.initialize(initial);
            std::thread::spawn(move || {
                let world = join(number, (process, processes), ranks);
                let backends = world.own().map(|rank| device.backend(rank).unwrap()).collect();
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async { trained(builder.start_in(world, backends).await.unwrap()).await })
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// EX-2, with two replicas of two shards of parts, and with parts alone.
#[test]
fn losses_and_weights_of_parts_do_not_depend_on_how_ranks_are_split_over_processes() {
    for (ranks, replicas, tensor) in [(4, 1, 2), (4, 2, 2), (4, 1, 4)] {
        let mut config = config();
        (config.mesh.tp, config.mesh.dp_replicate) = (tensor, Some(replicas));
        let mut expected = in_processes(&config, &[ranks]);
        let (losses, weights) = expected.remove(0);
        assert!(weights.is_some() && losses.windows(2).all(|losses| losses[0] != losses[1]));
        // Groups of two inside of a process, one across two, and all of them.
        for split in [&[2, 2][..], &[1, 3], &[1, 1, 1, 1]] {
            for (process, (found, exported)) in in_processes(&config, split).into_iter().enumerate() {
                assert_eq!(found, losses, "tp {tensor}, {replicas} replicas, {split:?}");
                assert_eq!(exported.is_some(), process == 0);
                assert!(exported.is_none() || exported == weights, "tp {tensor}, {split:?}");
            }
        }
    }
}
