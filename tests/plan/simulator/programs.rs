//! Programs and clusters whose times can be worked out by hand.

use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{CallBuilder, CostHint, Form, Math, Model, Phase, StepProgram};
use warpweft_session::config::{Config, Declared};

/// One operation a nanosecond, one byte a nanosecond between ranks, memory and launches free.
pub(crate) const PLAIN: &str = "
name = 'plain'
gpus_per_node = 4096
algorithm = 'ring'
[gpu]
memory_bytes = 1_000_000_000_000
hbm_bytes_per_s = 1e30
launch_us = 0
replay_us = 0
[gpu.flops_per_s]
f32 = 1e9
bf16 = 1e9
fp8 = 1e9
fp4 = 1e9
[inside]
latency_us = 2
bytes_per_s = 1e9
";

pub(crate) fn plain() -> Cluster {
    Cluster::from_toml(PLAIN, "plain.toml").unwrap()
}

pub(crate) fn plain_with(tables: &str) -> Cluster {
    Cluster::from_toml(&format!("{PLAIN}{tables}"), "plain.toml").unwrap()
}

pub(crate) fn depth(depth: u32) -> Config {
    let mut config = Config::default();
    config.prefetch.depth = Some(depth);
    config
}

fn cost(nanoseconds: u64) -> CostHint {
    CostHint { flops: nanoseconds, math: Math::Bf16, ..CostHint::default() }
}

/// One call that costs `parts` and reads an input, no weight.
pub(crate) fn call_of(parts: &[CostHint]) -> StepProgram {
    let mut program = StepProgram::builder("call", &Model::builder().build());
    let input = program.input("x", 1, ElementType::F32).unwrap();
    let call = program.call("call", Phase::Forward).reads(input);
    parts.iter().fold(call, |call, part| call.cost(*part)).add().unwrap();
    program.build_evaluation().unwrap()
}

/// A forward pass of `layers` calls of `nanoseconds` each; each reads a bf16 weight of `rows` × 500, so of
/// `1000 · rows` bytes.
pub(crate) fn chain(layers: usize, rows: usize, nanoseconds: u64) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<_> = (0..layers)
        .map(|layer| model.sharded(&format!("w{layer}"), rows, 500, Format::Bf16).unwrap())
        .collect();
    let mut program = StepProgram::builder("chain", &model.build());
    let input = program.input("x", 1, ElementType::F32).unwrap();
    for (layer, weight) in weights.into_iter().enumerate() {
        program
            .call(&format!("call {layer}"), Phase::Forward)
            .uses(weight, Orientation::Rowwise, Form::Planes)
            .reads(input)
            .cost(cost(nanoseconds))
            .add()
            .unwrap();
    }
    program.build_evaluation().unwrap()
}

/// One call that reads the planes of an NVFP4 weight of `size` × `size` in 16 × 16 tiles, and takes no time.
pub(crate) fn tiles(size: usize, form: Form) -> StepProgram {
    let mut model = Model::builder();
    let weight = model.sharded("w", size, size, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("tiles", &model.build());
    program.call("read", Phase::Forward).uses(weight, Orientation::Rowwise, form).add().unwrap();
    program.build_evaluation().unwrap()
}

/// Training of `layers` weights of `rows` × 500: a forward call of `nanoseconds` for each, and a backward
/// call of twice that.
pub(crate) fn training(layers: usize, rows: usize, nanoseconds: u64) -> StepProgram {
    training_with(&[], layers, rows, nanoseconds)
}

/// The same with some calls dynamic.
pub(crate) fn training_with(dynamic: &[&str], layers: usize, rows: usize, nanoseconds: u64) -> StepProgram {
    let marked = |name: &str, call: CallBuilder<'_>| {
        if dynamic.contains(&name) { call.dynamic().add() } else { call.add() }.unwrap();
    };
    let mut model = Model::builder();
    let weights: Vec<_> = (0..layers)
        .map(|layer| model.sharded(&format!("w{layer}"), rows, 500, Format::Bf16).unwrap())
        .collect();
    let mut program = StepProgram::builder("train", &model.build());
    let input = program.input("x", 1, ElementType::F32).unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        let name = format!("forward {layer}");
        let call = program.call(&name, Phase::Forward).reads(input);
        marked(&name, call.uses(*weight, Orientation::Rowwise, Form::Planes).cost(cost(nanoseconds)));
    }
    for (layer, weight) in weights.iter().enumerate().rev() {
        let name = format!("backward {layer}");
        let call = program.call(&name, Phase::Backward).reads(input).gradient(*weight);
        marked(&name, call.uses(*weight, Orientation::Columnwise, Form::Planes).cost(cost(2 * nanoseconds)));
    }
    program.build_training().unwrap()
}

/// `calls` calls of `nanoseconds` each, which write the gradient of one weight of `rows` × 500 each and read none.
pub(crate) fn gradients(calls: usize, rows: usize, nanoseconds: u64) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<_> =
        (0..calls).map(|call| model.sharded(&format!("w{call}"), rows, 500, Format::Bf16).unwrap()).collect();
    let mut program = StepProgram::builder("gradients", &model.build());
    let input = program.input("x", 1, ElementType::F32).unwrap();
    for (number, weight) in weights.into_iter().enumerate() {
        let call = program.call(&format!("call {number}"), Phase::Backward).reads(input);
        call.gradient(weight).cost(cost(nanoseconds)).add().unwrap();
    }
    program.build_gradients().unwrap()
}

/// A call with a gradient of a weight of 100 × 500, three calls without weights, and one that reads a weight
/// of `rows` × 500; all of them take no time to speak of.
pub(crate) fn early_gradient(rows: usize) -> StepProgram {
    let mut model = Model::builder();
    let small = model.sharded("small", 100, 500, Format::Bf16).unwrap();
    let large = model.sharded("large", rows, 500, Format::Bf16).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let input = program.input("x", 1, ElementType::F32).unwrap();
    let call = program.call("early", Phase::Backward).reads(input).cost(cost(10)).gradient(small);
    call.uses(small, Orientation::Rowwise, Form::Planes).add().unwrap();
    for number in 0..3 {
        program.call(&format!("between {number}"), Phase::Forward).reads(input).cost(cost(10)).add().unwrap();
    }
    let call = program.call("late", Phase::Backward).reads(input).cost(cost(10)).gradient(large);
    call.uses(large, Orientation::Rowwise, Form::Planes).add().unwrap();
    program.build_training().unwrap()
}
