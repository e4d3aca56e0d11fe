//! `prefetch.depth`: it counts calls, and each call's weights are one gather.

use warpweft_base::id::WeightId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::model::{Form, Mesh, Model, ModelBuilder, Phase, ProgramBuilder, StepProgram};
use warpweft_plan::op::{AllGather, GatherChunk, Op};
use warpweft_plan::plan::{Policy, StepPlan};

use super::policy;

const LAYERS: usize = 5;

/// The weights of a layer, in three formats.
fn layer(model: &mut ModelBuilder, layer: usize) -> [WeightId; 3] {
    let formats = [("a", Format::NVFP4_2D), ("b", Format::FP8_BLOCK128_POW2), ("c", Format::Bf16)];
    formats.map(|(name, format)| model.sharded(&format!("{name}{layer}"), 256, 128, format).unwrap())
}

fn call(program: &mut ProgramBuilder, name: &str, uses: &[WeightId], orientation: Orientation) {
    let mut call = program.call(name, Phase::Forward);
    for weight in uses {
        call = call.uses(*weight, orientation, Form::Dense);
    }
    call.add().unwrap();
}

/// Layers of three weights, forward and back, with calls between them that use a replicated weight or none.
fn layers(groups_of: Option<usize>) -> StepProgram {
    let mut model = Model::builder();
    let layers: Vec<_> = (0..LAYERS).map(|number| layer(&mut model, number)).collect();
    let norm = model.replicated("norm", 1, 128).unwrap();
    for (number, layer) in layers.iter().enumerate() {
        for (place, members) in groups_of.into_iter().flat_map(|of| layer.chunks(of)).enumerate() {
            model.group(&format!("layer{number}.{place}"), members).unwrap();
        }
    }
    let mut program = StepProgram::builder("evaluate", &model.build());
    for (number, layer) in layers.iter().enumerate() {
        call(&mut program, &format!("f{number}"), layer, Orientation::Rowwise);
        call(&mut program, &format!("norm{number}"), &[norm], Orientation::Rowwise);
        call(&mut program, &format!("nothing{number}"), &[], Orientation::Rowwise);
    }
    for (number, layer) in layers.iter().enumerate().rev() {
        call(&mut program, &format!("b{number}"), layer, Orientation::Columnwise);
    }
    program.build_evaluation().unwrap()
}

fn plan(program: &StepProgram, policy: &Policy) -> StepPlan {
    StepPlan::build(program, policy, Mesh::new(2).unwrap()).unwrap()
}

/// Every gather: its weights, and the call after which it may begin.
fn gathers(plan: &StepPlan) -> Vec<(String, &str)> {
    let names = |parts: &mut dyn Iterator<Item = WeightId>| -> String {
        parts.map(|weight| plan.weights.layout(weight).name.clone()).collect::<Vec<_>>().join(" ")
    };
    let mut found = Vec::new();
    for task in &plan.tasks {
        let weights = match &task.op {
            Op::AllGather(AllGather { parts, .. }) => names(&mut parts.iter().map(|part| part.weight)),
            Op::GatherChunk(GatherChunk { part, .. }) => names(&mut std::iter::once(part.weight)),
            _ => continue,
        };
        found.push((
            weights,
            task.release.map_or("the beginning", |release| plan.task(release).subject.as_str()),
        ));
    }
    found
}

/// The layers of the calls that use sharded weights, and after which call begins what is requested at each.
const CALLS: [(usize, &str); 2 * LAYERS] = [
    (0, "the beginning"),
    (1, "nothing0"),
    (2, "nothing1"),
    (3, "nothing2"),
    (4, "nothing3"),
    (4, "nothing4"),
    (3, "b4"),
    (2, "b3"),
    (1, "b2"),
    (0, "b1"),
];

#[test]
fn all_weights_of_a_call_are_one_gather_so_many_calls_ahead_whatever_their_formats() {
    let program = layers(None);
    for depth in 0..5 {
        let mut expected = Vec::new();
        for (number, (layer, _)) in CALLS.iter().enumerate() {
            // Requested no later than forward used them, planes are still there in backward.
            let forward = 2 * LAYERS - 1 - number;
            let issue = number.saturating_sub(depth);
            if number < LAYERS || issue > forward {
                let weights = format!("a{layer} b{layer} c{layer}");
                expected.push((weights, CALLS[issue].1));
            }
        }
        assert_eq!(gathers(&plan(&program, &policy(depth as u32))), expected, "depth {depth}");
    }
}

#[test]
fn of_a_call_only_what_is_no_longer_there_is_gathered() {
    let mut model = Model::builder();
    let weights = layer(&mut model, 0);
    let others = layer(&mut model, 1);
    let mut program = StepProgram::builder("evaluate", &model.build());
    call(&mut program, "first", &weights, Orientation::Rowwise);
    call(&mut program, "second", &[weights[2], others[0], weights[0], others[1]], Orientation::Rowwise);
    call(&mut program, "third", &[others[1]], Orientation::Rowwise);
    call(&mut program, "fourth", &[weights[1], others[1]], Orientation::Rowwise);
    let program = program.build_evaluation().unwrap();
    let expected = [
        ("a0 b0 c0".to_owned(), "the beginning"),
        ("a1 b1".to_owned(), "the beginning"),
        ("b0".to_owned(), "second"),
    ];
    assert_eq!(gathers(&plan(&program, &policy(1))), expected);
}

#[test]
fn a_weight_that_a_call_uses_in_both_orientations_is_one_gather_in_its_name() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 256, 128, Format::Mxfp8).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    let both = program.call("both", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Planes);
    both.uses(weight, Orientation::Columnwise, Form::Planes).add().unwrap();
    let plan = plan(&program.build_evaluation().unwrap(), &policy(1));
    let named = |wanted: &str| -> Vec<&str> {
        let tasks = plan.tasks.iter().filter(|task| task.op.name() == wanted);
        tasks.map(|task| task.subject.as_str()).collect()
    };
    assert_eq!((named("all-gather"), named("assemble")), (vec!["w"], vec!["w"]));
}

#[test]
fn a_group_and_what_exceeds_a_chunk_travel_apart_from_the_others_of_their_call() {
    let of_first = |groups_of, chunk| {
        let plan = plan(&layers(groups_of), &Policy { chunk, ..policy(1) });
        let gathers: Vec<String> = gathers(&plan).into_iter().map(|(weights, _)| weights).collect();
        let first: Vec<String> = gathers.into_iter().take_while(|weights| !weights.contains('1')).collect();
        first.join(", ")
    };
    assert_eq!(of_first(None, None), "a0 b0 c0");
    assert_eq!(of_first(Some(2), None), "a0 b0, c0");
    assert_eq!(of_first(Some(1), None), "a0, b0, c0");
    // Over both ranks a is some 16 KiB, b 32 and c 64.
    assert_eq!(of_first(None, Some(1 << 20)), "a0 b0 c0");
    assert_eq!(of_first(None, Some(100_000)), "a0 b0, c0");
    assert_eq!(of_first(None, Some(65_536)), "a0 b0, c0");
    assert_eq!(of_first(None, Some(40_000)), "a0, b0, c0, c0");
    assert_eq!(of_first(Some(3), Some(40_000)), "a0 b0 c0", "a group travels whole");
}
