//! Plans as data: what the passes place where.

use warpweft::format::{ElementType, Format, Orientation, Via};
use warpweft::layout::{OptimizerSettings, Settings};
use warpweft::model::{Form, Mesh, Model, Phase, StepProgram};
use warpweft::op::Op;
use warpweft::plan::{Backward, Columnwise, Policy, StepPlan};

fn policy(depth: u32) -> Policy {
    Policy {
        depth,
        budget: None,
        communicators: 2,
        backward: Backward::Regather,
        columnwise: Columnwise::OnDemand,
        settings: Settings {
            via: Via::Bf16,
            optimizer: OptimizerSettings {
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.0,
                max_norm: 0.0,
            },
        },
    }
}

/// `layers` square weights in a chain, forward and backward, and one replicated bias.
fn chain(layers: usize, format: Format) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<_> =
        (0..layers).map(|layer| model.sharded(&format!("w{layer}"), 64, 64, format).unwrap()).collect();
    let bias = model.replicated("bias", 1, 7).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let input = program.input("input", 8, ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut activations = vec![program.activation("x0", 8).unwrap()];
    program.call("embed", Phase::Forward).reads(input).writes(activations[0]).add().unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        let output = program.activation(&format!("x{}", layer + 1), 8).unwrap();
        program
            .call(&format!("f{layer}"), Phase::Forward)
            .uses(*weight, Orientation::Rowwise, Form::Dense)
            .uses(bias, Orientation::Rowwise, Form::Dense)
            .reads(activations[layer])
            .writes(output)
            .add()
            .unwrap();
        activations.push(output);
    }
    let gradient = program.activation("g", 8).unwrap();
    program
        .call("loss", Phase::Forward)
        .reads(activations[layers])
        .writes(loss)
        .writes(gradient)
        .add()
        .unwrap();
    for (layer, weight) in weights.iter().enumerate().rev() {
        let mut call = program
            .call(&format!("b{layer}"), Phase::Backward)
            .uses(*weight, Orientation::Columnwise, Form::Dense)
            .gradient(*weight)
            .reads(activations[layer])
            .updates(gradient);
        if layer == 0 {
            call = call.gradient(bias);
        }
        call.add().unwrap();
    }
    program.build_training().unwrap()
}

fn position(plan: &StepPlan, wanted: impl Fn(&Op, &str) -> bool) -> usize {
    plan.tasks.iter().position(|task| wanted(&task.op, &task.subject)).expect("the task is planned")
}

#[test]
fn a_gather_is_issued_depth_uses_ahead_of_its_use() {
    for depth in 0..4 {
        let plan = StepPlan::build(&chain(6, Format::F32), &policy(depth), Mesh::new(2).unwrap()).unwrap();
        let gather = position(&plan, |op, subject| matches!(op, Op::AllGather { .. }) && subject == "w4");
        let release = plan.tasks[gather].release.expect("it is released by a call");
        assert_eq!(plan.task(release).subject, ["f3", "f2", "f1", "f0"][depth as usize]);
    }
}

#[test]
fn equal_inputs_give_equal_plans_and_fingerprints() {
    let mesh = Mesh::new(3).unwrap();
    let one = StepPlan::build(&chain(4, Format::F32), &policy(2), mesh).unwrap();
    let two = StepPlan::build(&chain(4, Format::F32), &policy(2), mesh).unwrap();
    assert_eq!(one, two);
    assert_eq!(one.fingerprint(), two.fingerprint());
    let deeper = StepPlan::build(&chain(4, Format::F32), &policy(3), mesh).unwrap();
    assert_ne!(one.fingerprint(), deeper.fingerprint());
}

#[test]
fn a_budget_below_the_plan_names_what_is_alive() {
    let mesh = Mesh::new(2).unwrap();
    let free = StepPlan::build(&chain(4, Format::F32), &policy(2), mesh).unwrap();
    let tight = Policy { budget: Some(free.bounds.transient_bytes), ..policy(2) };
    StepPlan::build(&chain(4, Format::F32), &tight, mesh).unwrap();
    let short = Policy { budget: Some(free.bounds.transient_bytes - 1), ..policy(2) };
    let error = StepPlan::build(&chain(4, Format::F32), &short, mesh).unwrap_err().to_string();
    assert!(error.contains("memory.budget") && error.contains("gathered"), "{error}");
}

#[test]
fn zz_show() {
    let plan =
        StepPlan::build(&chain(3, Format::from_str("nvfp4").unwrap()), &policy(1), Mesh::new(2).unwrap())
            .unwrap();
    println!("{plan}");
}
use std::str::FromStr;
