//! Joined derivations: one task derives for a call all that one gather brought.

use warpweft_base::id::WeightId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::model::{Form, Mesh, Model, Phase, ProgramBuilder, StepProgram};
use warpweft_plan::op::{Assemble, Dequantize, Op, Transpose};
use warpweft_plan::plan::{Policy, StepPlan};

use super::policy;

/// A call that uses three weights of `rows` rows in NVFP4 and one in FP8, and a weight of no group, after two that use
/// none of them. The four are in groups of so many, or in none.
fn layered(rows: usize, groups_of: Option<usize>) -> StepProgram {
    let mut model = Model::builder();
    let before = model.sharded("before", 64, 64, Format::NVFP4_2D).unwrap();
    let mut members: Vec<WeightId> =
        (0..3).map(|n| model.sharded(&format!("m{n}"), rows, 128, Format::NVFP4_2D).unwrap()).collect();
    members.push(model.sharded("m3", rows, 128, Format::FP8_BLOCK128_POW2).unwrap());
    let alone = model.sharded("alone", rows, 128, Format::NVFP4_2D).unwrap();
    for (number, members) in groups_of.into_iter().flat_map(|of| members.chunks(of)).enumerate() {
        model.group(&format!("members.{number}"), members).unwrap();
    }
    let mut program = StepProgram::builder("evaluate", &model.build());
    let used = |name: &str, weights: &[WeightId], program: &mut ProgramBuilder| {
        let mut call = program.call(name, Phase::Forward);
        for weight in weights {
            call = call.uses(*weight, Orientation::Columnwise, Form::DenseBf16);
        }
        call.add().unwrap();
    };
    used("first", &[before], &mut program);
    used("second", &[before], &mut program);
    used("all", &[&members[..], &[alone]].concat(), &mut program);
    program.build_evaluation().unwrap()
}

/// Subjects of tasks, and of how many weights each is.
type Subjects<'p> = Vec<(&'p str, usize)>;

/// What transposes, and what dequantizes.
fn derived(plan: &StepPlan) -> (Subjects<'_>, Subjects<'_>) {
    let (mut transposed, mut dequantized) = (Vec::new(), Vec::new());
    for task in &plan.tasks {
        match &task.op {
            Op::Transpose(Transpose { parts }) => transposed.push((task.subject.as_str(), parts.len())),
            Op::Dequantize(Dequantize { parts }) => dequantized.push((task.subject.as_str(), parts.len())),
            _ => {}
        }
    }
    (transposed, dequantized)
}

fn plan(rows: usize, groups_of: Option<usize>, policy: &Policy) -> StepPlan {
    StepPlan::build(&layered(rows, groups_of), policy, Mesh::new(2).unwrap()).unwrap()
}

#[test]
fn what_one_gather_brought_for_a_call_is_derived_by_one_task() {
    for derive_ahead in [false, true] {
        for depth in 0..3 {
            let policy = Policy { derive_ahead, ..policy(depth) };
            let whole = plan(64, Some(4), &policy);
            let tasks = [("before", 1), ("m0 and 3 more", 4), ("alone", 1)];
            let (transposed, dequantized) = derived(&whole);
            assert_eq!(transposed, tasks, "depth {depth}, ahead {derive_ahead}");
            assert_eq!(dequantized, tasks, "depth {depth}, ahead {derive_ahead}");
            let (apart, of_call) = (plan(64, Some(1), &policy), plan(64, None, &policy));
            let (transposed, dequantized) = derived(&apart);
            assert_eq!((transposed.len(), dequantized.len()), (6, 6));
            let tasks = vec![("before", 1), ("m0 and 4 more", 5)];
            assert_eq!(derived(&of_call), (tasks.clone(), tasks), "depth {depth}, ahead {derive_ahead}");
            assert_eq!(whole.bounds.wire_bytes, apart.bounds.wire_bytes);
            assert_eq!(whole.bounds.wire_bytes, of_call.bounds.wire_bytes);
        }
    }
}

/// Values of two types are two parts of one task, which names the planes they have in common once.
#[test]
fn one_task_makes_values_of_two_types_of_the_same_planes() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 64, 64, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    let call = program.call("both", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.uses(weight, Orientation::Rowwise, Form::DenseBf16).add().unwrap();
    let plan =
        StepPlan::build(&program.build_evaluation().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let dequantize = plan.tasks.iter().find(|task| matches!(task.op, Op::Dequantize(_))).unwrap();
    assert_eq!(dequantize.subject, "w");
    let Op::Dequantize(Dequantize { parts }) = &dequantize.op else { unreachable!() };
    let values: Vec<_> = parts.iter().map(|part| part.values).collect();
    assert_eq!(values, [ElementType::F32, ElementType::Bf16]);
    let mut touched: Vec<_> = dequantize.op.accesses().into_iter().map(|(slot, _)| slot).collect();
    assert_eq!(touched.len(), 5, "what arrived, the own shard, their tensor scale, values twice");
    touched.sort_unstable();
    touched.dedup();
    assert_eq!(touched.len(), 5, "no slot is named twice");
}

/// Where a task has bytes enough to move, another launch costs little, and planes need not live until the
/// last of them is read.
#[test]
fn a_task_with_bytes_enough_takes_no_more_weights() {
    // Values of 64 MiB each.
    let plan = plan(1 << 18, Some(4), &policy(1));
    let (transposed, values) = derived(&plan);
    assert_eq!(values, [("before", 1), ("m0", 1), ("m1", 1), ("m2", 1), ("m3", 1), ("alone", 1)]);
    // Planes of 18 MiB in NVFP4 and of 32 in FP8, read and written.
    assert_eq!(transposed, [("before", 1), ("m0 and 1 more", 2), ("m2 and 1 more", 2), ("alone", 1)]);
}

/// Of a group whose planes one call reads and another dequantizes, each member is treated as it is read.
#[test]
fn of_a_gather_only_what_somebody_reads_whole_is_made_whole() {
    let mut model = Model::builder();
    let [planes, values, both] =
        ["planes", "values", "both"].map(|name| model.sharded(name, 64, 64, Format::NVFP4_2D).unwrap());
    model.group("all", &[planes, values, both]).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    let call = program.call("first", Phase::Forward).uses(planes, Orientation::Rowwise, Form::Planes);
    let call = call.uses(values, Orientation::Rowwise, Form::Dense);
    call.uses(both, Orientation::Rowwise, Form::DenseBf16).add().unwrap();
    let call = program.call("second", Phase::Forward).uses(planes, Orientation::Rowwise, Form::Planes);
    let call = call.uses(values, Orientation::Rowwise, Form::DenseBf16);
    call.uses(both, Orientation::Rowwise, Form::Planes).add().unwrap();
    let program = program.build_evaluation().unwrap();
    // Two calls that use the same weights one after the other share a gather.
    let plan = StepPlan::build(&program, &policy(2), Mesh::new(2).unwrap()).unwrap();
    let gathers: Vec<_> = plan.tasks.iter().filter(|task| task.op.is_gather()).collect();
    assert_eq!(gathers.len(), 1);
    let (mut whole, mut beside) = (Vec::new(), Vec::new());
    for task in &plan.tasks {
        match &task.op {
            Op::Assemble(Assemble { parts }) => whole.extend(parts.iter().map(|part| part.weight)),
            Op::Dequantize(Dequantize { parts }) => {
                beside.extend(parts.iter().map(|part| (part.weight, part.values, part.own.is_some())));
            }
            _ => {}
        }
    }
    assert_eq!(whole, [planes, both]);
    let (f32, bf16) = (ElementType::F32, ElementType::Bf16);
    assert_eq!(beside, [(values, f32, true), (both, bf16, false), (values, bf16, true)]);
}
