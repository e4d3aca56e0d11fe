//! Declares two layers and prints the plan of their training step.
//!
//! `cargo run --example 01_print_a_plan` shows the table; add `-- --dot` for Graphviz source,
//! `-- --depth 0` to see gathers on demand.

#[path = "shared/print.rs"]
mod print;

use warpweft::model::{Layer, LayerStack};
use warpweft::prelude::*;
use warpweft::session::plan_program;

use print::println;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let depth = arguments.iter().position(|word| word == "--depth").and_then(|at| arguments.get(at + 1));

    // Weights: rows are output features, split over the ranks; a bias is small and stays whole.
    let mut model = Model::builder();
    let format: Format = "nvfp4_2d".parse()?;
    let up = model.sharded("mlp.up", 256, 64, format)?;
    let down = model.sharded("mlp.down", 64, 256, format)?;
    let bias = model.replicated("mlp.bias", 1, 64)?;
    let model = model.build();

    // The step: two layers forward, a loss, and the same layers backward.
    let mut program = StepProgram::builder("train", &model);
    let tokens = 32;
    let input = program.input("input", tokens * 64, ElementType::F32)?;
    let layers =
        vec![Layer::new("up", vec![up], tokens * 256), Layer::new("down", vec![down, bias], tokens * 64)];
    let stack = LayerStack::forward(&mut program, input, layers, Form::Dense)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let gradient = program.activation("loss.gradient", tokens * 64)?;
    program.call("loss", Phase::Forward).reads(stack.output()).writes(loss).writes(gradient).add()?;
    let unused = program.activation("input.gradient", tokens * 64)?;
    stack.backward(&mut program, gradient, unused)?;
    let program = program.build_training()?;

    // The plan that a session on four ranks would run: every task of a step, verified before you see it.
    let mut config = Config::default();
    if let Some(depth) = depth {
        config.prefetch.depth = Some(depth.parse()?);
    }
    let plan = plan_program(&program, &config, 4)?;
    if arguments.iter().any(|word| word == "--dot") {
        println!("{}", plan.to_dot());
    } else {
        println!("{plan}");
    }
    let columnwise = plan.tasks.iter().filter(|task| task.op.name() == "transpose").count();
    let uses = program.calls().iter().flat_map(|call| &call.uses);
    let backward = uses.filter(|usage| usage.orientation == Orientation::Columnwise).count();
    eprintln!("{columnwise} columnwise copies are derived for {backward} backward uses");
    Ok(())
}
