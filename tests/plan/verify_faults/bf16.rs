//! PL-4 and PL-10 for gradients that calls write in bf16.

use warpweft_base::id::{CallId, SlotId, TaskId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{
    AddGradient, Compute, ExchangeGradient, Op, OperandRole, RoundGradient, SumGradient, WireType,
    ZeroPadding,
};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{position, recount, refused, relocate, remove, serialize, slot, spread, weight};
use super::programs::policy;

/// `wide` gets its gradient in bf16, `narrow` in f32 from one call; 33 rows on 2 ranks, so that there is
/// padding. `tied` gets two in bf16.
fn training() -> StepPlan {
    let mut model = Model::builder();
    let [wide, narrow, tied] =
        ["wide", "narrow", "tied"].map(|name| model.sharded(name, 33, 16, Format::F32).unwrap());
    let mut program = StepProgram::builder("train", &model.build());
    let call = program.call("first", Phase::Backward).uses(wide, Orientation::Rowwise, Form::Dense);
    let call = call.gradient_in(wide, ElementType::Bf16).gradient(narrow);
    call.gradient_in(tied, ElementType::Bf16).add().unwrap();
    let call = program.call("second", Phase::Backward).uses(tied, Orientation::Rowwise, Form::Dense);
    call.gradient_in(tied, ElementType::Bf16).add().unwrap();
    let program = program.build_training().unwrap();
    let mut plan = StepPlan::build(&program, &policy(), Mesh::new(2).unwrap()).unwrap();
    spread(&mut plan);
    recount(&mut plan);
    verify(&plan).unwrap();
    plan
}

fn gradient(plan: &StepPlan, name: &str, call: u32) -> SlotId {
    slot(plan, Content::WireGradient(weight(plan, name), CallId::new(call)))
}

fn reduction(plan: &StepPlan, name: &str) -> usize {
    let wanted = weight(plan, name);
    position(
        plan,
        0,
        |op| matches!(op, Op::ExchangeGradient(ExchangeGradient { parts, .. }) if parts[0].weight == wanted),
    )
}

/// Puts `op` on the quantize lane right before task `at`, after a fence.
fn insert(plan: &mut StepPlan, at: usize, op: Op) {
    let mut task = plan.tasks[position(plan, 0, |op| matches!(op, Op::SumGradient(_)))].clone();
    task.op = op;
    plan.tasks.insert(at, task);
    serialize(plan);
    recount(plan);
}

#[test]
fn the_plan_has_no_rounding_and_its_proof_counts_every_gradient() {
    let plan = training();
    assert!(!plan.tasks.iter().any(|task| matches!(task.op, Op::RoundGradient(_))));
    assert_eq!(verify(&plan).unwrap().gradients, 4);
}

/// PL-4
#[test]
fn a_gradient_written_in_bf16_is_not_rounded_again() {
    let mut plan = training();
    let (from, to) = (gradient(&plan, "tied", 0), gradient(&plan, "tied", 1));
    let (at, of) = (reduction(&plan, "tied"), weight(&plan, "tied"));
    let (element, wire) = (ElementType::F32, WireType::Bf16);
    insert(&mut plan, at, Op::RoundGradient(RoundGradient { weight: of, element, from, wire, to }));
    let says = ["PL-4", "(round gradient", "written in bf16", "reduce a gradient in bf16 as it lies"];
    let error = refused(&plan, &says);
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-4
#[test]
fn a_gradient_written_in_bf16_is_not_reduced_as_f32() {
    let mut plan = training();
    let at = reduction(&plan, "wide");
    let Op::ExchangeGradient(ExchangeGradient { wire, .. }) = &mut plan.tasks[at].op else { unreachable!() };
    *wire = WireType::F32;
    plan.tasks[at].wire_bytes *= 2;
    recount(&mut plan);
    refused(&plan, &["PL-4", "gradient of `wide` from call `first`, written in bf16"]);
}

/// PL-4. What another call wrote in f32 must still be rounded, and travels as the policy says.
#[test]
fn a_gradient_written_in_f32_beside_it_does_not_travel_in_bf16() {
    let mut plan = training();
    let at = reduction(&plan, "narrow");
    let Op::ExchangeGradient(ExchangeGradient { wire, .. }) = &mut plan.tasks[at].op else { unreachable!() };
    *wire = WireType::Bf16;
    plan.tasks[at].wire_bytes /= 2;
    recount(&mut plan);
    refused(
        &plan,
        &["PL-4", "gradient of `narrow` rounded to bf16", "round the gradient before it is reduced"],
    );
}

/// PL-4
#[test]
fn padding_rows_of_a_gradient_in_bf16_are_zeroed_before_it_is_reduced() {
    let mut plan = training();
    let of = weight(&plan, "wide");
    let zeroed =
        position(&plan, 0, |op| matches!(op, Op::ZeroPadding(ZeroPadding { weight, .. }) if *weight == of));
    let mut early = plan.clone();
    remove(&mut plan, zeroed);
    refused(
        &plan,
        &["PL-4", "`wide` with zeroed padding rows", "written in bf16, its padding rows not zeroed"],
    );
    // A closure writes the real rows alone, so zeros from before the call are still there.
    relocate(&mut early, zeroed, 1);
    assert!(early.tasks[..zeroed].iter().any(|task| matches!(task.op, Op::ZeroPadding(_))));
    recount(&mut early);
    assert!(verify(&early).is_ok(), "{}", verify(&early).unwrap_err());
}

/// PL-4. Sums on the rank are f32.
#[test]
fn a_gradient_written_in_bf16_is_not_added_on_the_rank() {
    let mut plan = training();
    let (from, into) = (gradient(&plan, "tied", 1), gradient(&plan, "tied", 0));
    let at = reduction(&plan, "tied").max(position(&plan, 1, |op| matches!(op, Op::Compute(_))) + 1);
    let of = weight(&plan, "tied");
    insert(&mut plan, at, Op::AddGradient(AddGradient { weight: of, from, into }));
    refused(&plan, &["PL-4", "(add gradient", "written in bf16"]);
}

/// PL-10, PL-6. The slot is one of the declared element type: an f32 gradient would reach beyond it.
#[test]
fn a_call_writes_a_gradient_only_into_a_slot_of_its_element_type() {
    for (name, element) in [("wide", ElementType::F32), ("narrow", ElementType::Bf16)] {
        let mut plan = training();
        let of = weight(&plan, name);
        let declared = plan.calls[0].gradients.iter_mut().find(|gradient| gradient.weight == of).unwrap();
        declared.element = element;
        let task = plan.describe(TaskId::at(position(&plan, 0, |op| matches!(op, Op::Compute(_)))));
        refused(&plan, &[&task, "gradient of `", name]);
    }
    for element in [ElementType::U8, ElementType::U32] {
        let mut plan = training();
        plan.calls[0].gradients[0].element = element;
        refused(&plan, &["PL-10", "writes the gradient of `wide`", "declare gradients in f32 or bf16"]);
    }
}

/// PL-4, PL-10. A call's two gradients in each other's slots, one of which is half as large.
#[test]
fn gradients_in_each_other_s_slots_are_refused() {
    let mut plan = training();
    let at = position(&plan, 0, |op| matches!(op, Op::Compute(_)));
    let Op::Compute(Compute { operands, .. }) = &mut plan.tasks[at].op else { unreachable!() };
    let of: Vec<usize> = (0..operands.len())
        .filter(|operand| matches!(operands[*operand].role, OperandRole::Gradient(_)))
        .collect();
    let (one, other) = (operands[of[0]].slot, operands[of[1]].slot);
    (operands[of[0]].slot, operands[of[1]].slot) = (other, one);
    serialize(&mut plan);
    refused(&plan, &["gradient of `wide`"]);
}

/// PL-4
#[test]
fn a_gradient_in_bf16_that_nobody_reduced_is_told_where_it_lies() {
    let mut plan = training();
    let at = reduction(&plan, "wide");
    let of = weight(&plan, "wide");
    let accumulated = position(
        &plan,
        0,
        |op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts[0].weight == of),
    );
    remove(&mut plan, accumulated.max(at));
    remove(&mut plan, accumulated.min(at));
    refused(&plan, &["PL-4", "main grad of `wide`"]);
    let mut plan = training();
    let of = weight(&plan, "tied");
    let second = position(
        &plan,
        1,
        |op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts[0].weight == of),
    );
    let reduced = position(
        &plan,
        1,
        |op| matches!(op, Op::ExchangeGradient(ExchangeGradient { parts, .. }) if parts[0].weight == of),
    );
    remove(&mut plan, second.max(reduced));
    remove(&mut plan, second.min(reduced));
    recount(&mut plan);
    refused(&plan, &["PL-4", "call `second` is not in it", "still lies in slot", "as the call wrote it"]);
}
