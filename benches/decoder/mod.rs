//! The step program of both scheduler benchmarks: a decoder as the planner sees one.
//!
//! A block is an attention layer and an MLP layer, each with two NVFP4 weights and a replicated norm, used
//! rowwise forward and columnwise backward. The weights are tiny on purpose: planning and issuing cost the
//! same for any size.

use warpweft_format::{ElementType, Format};
use warpweft_plan::model::{Form, Layer, LayerStack, Mesh, Model, Phase, StepProgram};
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_session::config::Config;

/// Rows and columns of every weight.
const WIDTH: usize = 64;
/// Elements of an activation.
const ACTIVATION: usize = 256;

/// Blocks of programs that plan to about 100, 1,000 and 10,000 tasks.
pub(crate) const BLOCKS: [usize; 3] = [3, 29, 294];

/// One training step of a decoder of `blocks` blocks.
pub(crate) fn program(blocks: usize) -> StepProgram {
    let mut model = Model::builder();
    let mut layers = Vec::new();
    for (block, (name, inner, outer)) in
        (0..blocks).flat_map(|block| [("attention", "qkv", "out"), ("mlp", "up", "down")].map(|l| (block, l)))
    {
        let name = format!("blocks.{block}.{name}");
        let mut sharded = |weight: &str| {
            model.sharded(&format!("{name}.{weight}"), WIDTH, WIDTH, Format::NVFP4_2D).unwrap()
        };
        let weights = vec![sharded(inner), sharded(outer)];
        let norm = model.replicated(&format!("{name}.norm"), 1, WIDTH).unwrap();
        let mut layer = Layer::new(&name, [weights, vec![norm]].concat(), ACTIVATION);
        layer.saved.push(("saved".to_owned(), ACTIVATION, ElementType::F32));
        layers.push(layer);
    }
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let tokens = program.input("tokens", ACTIVATION, ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let embedded = program.activation("embedded", ACTIVATION).unwrap();
    program.call("embed", Phase::Forward).reads(tokens).writes(embedded).add().unwrap();
    let stack = LayerStack::forward(&mut program, embedded, layers, Form::Dense).unwrap();
    let gradient = program.activation("output_gradient", ACTIVATION).unwrap();
    let head = program.call("loss", Phase::Forward).reads(stack.output());
    head.writes(loss).writes(gradient).add().unwrap();
    let unused = program.activation("input_gradient", ACTIVATION).unwrap();
    stack.backward(&mut program, gradient, unused).unwrap();
    program.build_training().unwrap()
}

/// Four ranks.
pub(crate) fn mesh() -> Mesh {
    Mesh::new(4).unwrap()
}

/// Prefetch two calls ahead, regather for backward, transpose on demand: the most tasks and fences.
pub(crate) fn policy() -> Policy {
    let mut config = Config::default();
    config.prefetch.depth = Some(2);
    config.optimizer.max_norm = 1.0;
    Policy::from(&config)
}

/// The verified plan of [`program`] for one of [`mesh`]'s ranks.
pub(crate) fn plan(program: &StepProgram) -> StepPlan {
    StepPlan::build(program, &policy(), mesh()).unwrap()
}
