//! PL-4 for gradients that travel in MXFP8: rounded once before they leave a rank, once a level, and only where
//! rows are whole blocks.

use warpweft_base::id::{CallId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Form, Levels, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{
    ExchangeGradient, Op, ReduceScatter, RoundGradient, SumGradient, SumTarget, WireType,
};
use warpweft_plan::plan::{Policy, StepPlan, verify};
use warpweft_plan::policy::{Reduce, ReduceDtype};

use super::edit::{position, recount, refused, remove, slot, spread, summed, weight};
use super::programs::policy;

/// `wide` has whole blocks and gets its gradient in f32, `written` in bf16; rows of `narrow` are half a block. Four
/// ranks that sum in pairs.
fn training() -> StepPlan {
    let weights = [
        ("wide", 64, ElementType::F32),
        ("written", 64, ElementType::Bf16),
        ("narrow", 16, ElementType::F32),
    ];
    planned(&weights, &[2], &Policy { reduce_dtype: ReduceDtype::Mxfp8, ..policy() })
}

/// The plan of a step in which one call writes gradients of these weights: name, columns, and the type it writes.
fn planned(weights: &[(&str, usize, ElementType)], levels: &[u32], policy: &Policy) -> StepPlan {
    let mut model = Model::builder();
    let sharded =
        |(name, columns, _): &(&str, usize, _)| model.sharded(name, 32, *columns, Format::F32).unwrap();
    let ids: Vec<WeightId> = weights.iter().map(sharded).collect();
    let mut program = StepProgram::builder("train", &model.build());
    let mut call = program.call("backward", Phase::Backward).uses(ids[0], Orientation::Rowwise, Form::Dense);
    for (id, (.., element)) in ids.iter().zip(weights) {
        call = call.gradient_in(*id, *element);
    }
    call.add().unwrap();
    let program = program.build_training().unwrap();
    let mesh = Mesh::new(4).unwrap().with_levels(Levels::new(levels).unwrap()).unwrap();
    let mut plan = StepPlan::build(&program, policy, mesh).unwrap();
    spread(&mut plan);
    recount(&mut plan);
    verify(&plan).unwrap();
    plan
}

/// The exchange of a weight's gradient at a level.
fn exchange(plan: &StepPlan, name: &str, level: usize) -> usize {
    let of = weight(plan, name);
    position(
        plan,
        level,
        |op| matches!(op, Op::ExchangeGradient(ExchangeGradient { parts, .. }) if parts[0].weight == of),
    )
}

/// The sum of the first level.
fn sum(plan: &StepPlan, name: &str) -> usize {
    let of = weight(plan, name);
    position(plan, 0, |op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts[0].weight == of))
}

fn rounding(plan: &StepPlan, name: &str) -> usize {
    let of = weight(plan, name);
    position(plan, 0, |op| matches!(op, Op::RoundGradient(RoundGradient { weight, .. }) if *weight == of))
}

/// The exchange brings `wire` in the place of what it brought.
fn travels(plan: &mut StepPlan, task: usize, wire: WireType) {
    let task = &mut plan.tasks[task];
    let Op::ExchangeGradient(op) = &mut task.op else { unreachable!() };
    task.wire_bytes = wire.bytes(task.wire_bytes * 32 / op.wire.bytes(32));
    op.wire = wire;
    recount(plan);
}

/// PL-6: 33 bytes for 32 elements, of what is exchanged and of what travels on.
#[test]
fn rows_of_whole_blocks_travel_in_mxfp8_at_every_level_and_others_in_bf16() {
    let plan = training();
    for (name, columns, wire) in
        [("wide", 64, WireType::Mxfp8), ("written", 64, WireType::Mxfp8), ("narrow", 16, WireType::Bf16)]
    {
        for level in [0, 1] {
            let task = &plan.tasks[exchange(&plan, name, level)];
            let Op::ExchangeGradient(op) = &task.op else { unreachable!() };
            // A rank of a pair sums the rows of two ranks, and then its own.
            let rows = [16, 8][level];
            assert_eq!((op.wire, task.wire_bytes), (wire, wire.bytes(rows * columns)), "{name}");
        }
        let Op::RoundGradient(RoundGradient { element, wire: rounded, .. }) =
            plan.tasks[rounding(&plan, name)].op
        else {
            unreachable!()
        };
        let from = if name == "written" { ElementType::Bf16 } else { ElementType::F32 };
        assert_eq!((element, rounded), (from, wire), "{name}");
        let Op::SumGradient(SumGradient { parts, .. }) = &plan.tasks[sum(&plan, name)].op else {
            unreachable!()
        };
        assert_eq!(parts[0].target, SumTarget::travelling_in(wire), "{name}");
    }
}

/// PL-4
#[test]
fn a_gradient_in_mxfp8_is_not_exchanged_as_another_type() {
    let mut plan = training();
    let task = exchange(&plan, "wide", 0);
    travels(&mut plan, task, WireType::Bf16);
    refused(&plan, &["PL-4", "gradient of `wide` rounded to bf16", "rounded to mxfp8"]);
}

/// PL-4
#[test]
fn a_gradient_that_is_not_rounded_does_not_travel_in_mxfp8() {
    let mut plan = training();
    let task = rounding(&plan, "wide");
    remove(&mut plan, task);
    recount(&mut plan);
    refused(&plan, &["PL-4", "`wide`", "round the gradient before it is reduced"]);
}

/// PL-4. Each rounding loses bits, so one of bf16 is of what a call wrote so.
#[test]
fn a_gradient_is_not_rounded_to_bf16_and_then_to_mxfp8() {
    let mut plan = training();
    let of = weight(&plan, "narrow");
    let call = CallId::new(0);
    let (from, to) = (
        slot(&plan, Content::WireGradient(of, call)),
        slot(&plan, Content::QuantizedGradient(weight(&plan, "wide"), call)),
    );
    let at = rounding(&plan, "narrow") + 1;
    let mut again = plan.tasks[at - 1].clone();
    let (element, wire) = (ElementType::Bf16, WireType::Mxfp8);
    again.op = Op::RoundGradient(RoundGradient { weight: of, element, from, wire, to });
    plan.tasks.insert(at, again);
    super::edit::serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-4", "a gradient of `narrow` that its call wrote in bf16", "rounded to bf16"]);
}

/// PL-4
#[test]
fn a_gradient_is_rounded_to_fewer_bits_alone() {
    for (element, wire) in [
        (ElementType::F32, WireType::F32),
        (ElementType::Bf16, WireType::Bf16),
        (ElementType::Bf16, WireType::F32),
        (ElementType::U8, WireType::Mxfp8),
    ] {
        let mut plan = training();
        let task = rounding(&plan, "wide");
        let Op::RoundGradient(op) = &mut plan.tasks[task].op else { unreachable!() };
        (op.element, op.wire) = (element, wire);
        refused(&plan, &["PL-4", &format!("from {element} to {wire}"), "round f32 to bf16 or mxfp8"]);
    }
}

/// PL-4. Nothing but the type is wrong: so it travels where f32 is asked for.
#[test]
fn a_gradient_written_in_bf16_is_not_sent_as_it_lies_where_it_is_to_be_rounded() {
    let mut plan = planned(&[("written", 64, ElementType::Bf16)], &[], &policy());
    assert!(!plan.tasks.iter().any(|task| matches!(task.op, Op::RoundGradient(_))));
    plan.policy.reduce_dtype = ReduceDtype::Mxfp8;
    refused(&plan, &["PL-4", "reduces the gradient of `written` in bf16, and not in mxfp8"]);
}

/// PL-4
#[test]
fn a_gradient_written_in_bf16_is_not_rounded_as_one_in_f32() {
    let mut plan = training();
    let task = rounding(&plan, "written");
    let Op::RoundGradient(op) = &mut plan.tasks[task].op else { unreachable!() };
    op.element = ElementType::F32;
    refused(&plan, &["PL-4", "`written`", "round what the call wrote, once, to mxfp8"]);
}

/// PL-4. What sums on the way adds values, and no codes.
#[test]
fn a_collective_that_sums_brings_no_gradient_in_mxfp8() {
    let policy = Policy { reduce: Reduce::Nccl, ..policy() };
    let mut plan = planned(&[("wide", 64, ElementType::F32)], &[], &policy);
    let task = position(&plan, 0, |op| matches!(op, Op::ReduceScatter(_)));
    let Op::ReduceScatter(ReduceScatter { wire, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *wire = WireType::Mxfp8;
    let problem = "`wide` in mxfp8 by a collective that sums";
    refused(&plan, &["PL-4", problem, "exchange it, and sum what was received"]);
}

/// PL-4
#[test]
fn sums_of_a_block_are_left_in_what_reduce_dtype_and_the_columns_say() {
    let mut plan = training();
    let task = sum(&plan, "wide");
    summed(&mut plan, task)[0].target = SumTarget::Rounded;
    refused(&plan, &["PL-4", "leaves sums of the gradient of `wide` in bf16, and not in mxfp8"]);
    let mut plan = training();
    let task = sum(&plan, "narrow");
    summed(&mut plan, task)[0].target = SumTarget::Quantized;
    refused(&plan, &["PL-4", "leaves sums of the gradient of `narrow` in mxfp8, and not in bf16"]);
}
