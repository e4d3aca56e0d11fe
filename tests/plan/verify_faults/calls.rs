//! PL-10: every call runs once, in program order, on what it declares; the bookkeeping is this step's.

use warpweft_base::id::{BufferId, CallId};
use warpweft_plan::layout::Content;
use warpweft_plan::model::Access;
use warpweft_plan::model::NonNegative;
use warpweft_plan::op::{Adam, CastVote, Compute, Op, OperandRole};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{call, is_reduction, position, reduced, refused, remove, repeat, serialize, slot, spread};
use super::programs::{all, evaluation, f32_training, nvfp4_training};

fn operand_of(plan: &StepPlan, name: &str, role: OperandRole) -> (usize, usize) {
    let task = call(plan, name);
    let Op::Compute(Compute { operands, .. }) = &plan.tasks[task].op else { unreachable!() };
    (task, operands.iter().position(|operand| operand.role == role).unwrap())
}

fn operands(plan: &mut StepPlan, task: usize) -> &mut Vec<warpweft_plan::op::Operand> {
    match &mut plan.tasks[task].op {
        Op::Compute(Compute { operands, .. }) => operands,
        _ => unreachable!(),
    }
}

fn buffer(plan: &StepPlan, name: &str) -> BufferId {
    BufferId::at(plan.buffers.iter().position(|buffer| buffer.name == name).unwrap())
}

/// PL-10
#[test]
fn a_call_that_never_runs_or_runs_twice_is_refused() {
    let mut plan = evaluation();
    let head = call(&plan, "head");
    remove(&mut plan, head);
    refused(&plan, &["PL-10"]);
    let mut plan = evaluation();
    let head = call(&plan, "head");
    repeat(&mut plan, head);
    let error = refused(&plan, &["PL-10", "runs call `head` when no call is next in program order"]);
    assert!(matches!(error, VerifyError::Program { .. }));
}

/// PL-10
#[test]
fn calls_out_of_program_order_are_refused() {
    let mut plan = nvfp4_training();
    let (one, other) = (call(&plan, "block.0.forward"), call(&plan, "block.1.forward"));
    plan.tasks.swap(one, other);
    serialize(&mut plan);
    refused(&plan, &["PL-10", "runs call `block.1.forward` when call `block.0.forward` is next"]);
}

/// PL-10
#[test]
fn every_copy_of_an_input_or_output_is_missed() {
    let mut lost = 0;
    for (name, plan) in all() {
        for copy in (0..plan.tasks.len()).filter(|task| matches!(plan.tasks[*task].op, Op::Copy(_))) {
            let mut plan = plan.clone();
            remove(&mut plan, copy);
            let error = refused(&plan, &["PL-10"]);
            assert!(matches!(error, VerifyError::Program { .. }), "{name}");
            lost += 1;
        }
    }
    assert!(lost >= 8, "{lost}");
}

/// PL-10
#[test]
fn a_buffer_read_before_its_writer_names_the_value_it_misses() {
    let mut plan = f32_training();
    let copy = position(&plan, 0, |op| matches!(op, Op::Copy(_)));
    remove(&mut plan, copy);
    refused(
        &plan,
        &["PL-10", "(compute of up.forward) needs buffer `tokens` as the user staged it", "holds nothing"],
    );
}

/// PL-10
#[test]
fn an_output_copied_before_its_last_writer_is_refused() {
    let mut plan = f32_training();
    let copy = position(&plan, 1, |op| matches!(op, Op::Copy(_)));
    let loss = call(&plan, "loss");
    let task = plan.tasks.remove(copy);
    plan.tasks.insert(loss, task);
    serialize(&mut plan);
    refused(&plan, &["PL-10", "(copy of loss)", "holds nothing"]);
}

/// PL-10
#[test]
fn operands_that_differ_from_the_declaration_are_refused() {
    // A buffer that the call does not get.
    let mut plan = nvfp4_training();
    let (task, missing) = operand_of(&plan, "head", OperandRole::Buffer(buffer(&plan, "error")));
    operands(&mut plan, task).remove(missing);
    refused(&plan, &["PL-10", "does not bind what call `head` declares: that it writes buffer `error`"]);
    // A use that it gets twice.
    let mut plan = nvfp4_training();
    let (task, doubled) = operand_of(&plan, "head", OperandRole::Use(0));
    let twice = operands(&mut plan, task)[doubled];
    operands(&mut plan, task).push(twice);
    refused(&plan, &["PL-10", "binds an operand of call `head` twice"]);
    // A gradient that it only reads.
    let mut plan = nvfp4_training();
    let gradient = position(&plan, 0, is_reduction);
    let weight = reduced(&mut plan, gradient).weight;
    let (task, read) = operand_of(&plan, "head.backward", OperandRole::Gradient(weight));
    operands(&mut plan, task)[read].access = Access::Read;
    serialize(&mut plan);
    refused(&plan, &["PL-10", "declares: that it writes the gradient of `embedding`"]);
    // Planes without their tensor scale.
    let mut plan = nvfp4_training();
    let (task, scale) = operand_of(&plan, "head", OperandRole::TensorScale(0));
    operands(&mut plan, task).remove(scale);
    refused(&plan, &["PL-10", "that it reads the tensor scale of use 0 (`embedding` rowwise)"]);
    // A use beyond the declared ones.
    let mut plan = nvfp4_training();
    let (task, first) = operand_of(&plan, "head", OperandRole::Use(0));
    let extra = warpweft_plan::op::Operand { role: OperandRole::Use(7), ..operands(&mut plan, task)[first] };
    operands(&mut plan, task).push(extra);
    refused(&plan, &["PL-10", "binds what call `head` does not declare: that it reads use 7 of 1"]);
}

/// PL-6, PL-10
#[test]
fn a_buffer_in_another_buffer_s_slot_is_refused() {
    let other = |plan: &mut StepPlan, name: &str| {
        spread(plan);
        let error = slot(plan, Content::Buffer(buffer(plan, "error")));
        let (task, hidden) = operand_of(plan, name, OperandRole::Buffer(buffer(plan, "hidden")));
        operands(plan, task)[hidden].slot = error;
        serialize(plan);
    };
    let mut plan = nvfp4_training();
    other(&mut plan, "embed");
    refused(
        &plan,
        &["PL-6", "writes buffer `hidden`", "into slot `error`, which was declared for other content"],
    );
    let mut plan = nvfp4_training();
    other(&mut plan, "block.0.forward");
    refused(
        &plan,
        &["PL-10", "needs buffer `hidden` as call `embed` wrote it", "slot `error` holds nothing"],
    );
}

/// PL-10. Two buffers in the same bytes, with every fence in place.
#[test]
fn a_buffer_overwritten_before_its_last_reader_is_refused_even_when_ordered() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let [kept, written] = ["tokens", "loss"].map(|name| slot(&plan, Content::Buffer(buffer(&plan, name))));
    plan.arena.slots[written.index()].region.offset = plan.arena.region(kept).offset;
    serialize(&mut plan);
    refused(
        &plan,
        &[
            "PL-10",
            "(compute of embed.backward) needs buffer `tokens` as the user staged it",
            "(compute of head) overwrote it through slot `loss`",
        ],
    );
}

/// PL-10
#[test]
fn a_fault_word_of_another_step_or_of_half_the_calls_is_refused() {
    let mut plan = f32_training();
    let clear = position(&plan, 0, |op| matches!(op, Op::ClearFault(_)));
    remove(&mut plan, clear);
    refused(
        &plan,
        &[
            "PL-10",
            "(compute of up.forward) needs a fault word that has seen the 0 calls before it",
            "earlier step",
        ],
    );
    let mut plan = f32_training();
    let (clear, loss) = (position(&plan, 0, |op| matches!(op, Op::ClearFault(_))), call(&plan, "loss"));
    let again = plan.tasks[clear].clone();
    plan.tasks.insert(loss, again);
    serialize(&mut plan);
    refused(&plan, &["PL-10", "(compute of loss)", "seen the 2 calls before it", "has seen 0 calls"]);
    // Cleared after the last call, where no norm would notice.
    let mut plan = evaluation();
    let clear = plan.tasks[position(&plan, 0, |op| matches!(op, Op::ClearFault(_)))].clone();
    plan.tasks.push(clear);
    serialize(&mut plan);
    refused(&plan, &["PL-10 (", "): plan `eval` ends without a fault word that has seen all calls"]);
}

/// PL-10
#[test]
fn a_norm_taken_before_the_last_call_does_not_know_its_fault() {
    let mut plan = f32_training();
    let last = CallId::at(plan.calls.len());
    let mut extra = plan.calls[2].clone();
    extra.name = "afterwards".into();
    extra.buffers.clear();
    plan.calls.push(extra);
    let fault = slot(&plan, Content::FaultWord);
    let mut task = plan.tasks[call(&plan, "loss")].clone();
    task.op = Op::Compute(Compute { call: last, fault, operands: Vec::new() });
    plan.tasks.push(task);
    serialize(&mut plan);
    refused(&plan, &["PL-10", "(grad norm of main grads) needs a fault word that has seen all 6 calls"]);
}

/// PL-10
#[test]
fn every_lost_step_of_the_vote_is_missed() {
    for (lost, misses) in [
        ("grad norm", "needs this rank's record of the step"),
        ("gather records", "needs all ranks' records of the step"),
        ("vote", "needs the vote of this step"),
    ] {
        let mut plan = nvfp4_training();
        let task = position(&plan, 0, |op| op.name() == lost);
        remove(&mut plan, task);
        refused(&plan, &["PL-10", misses]);
    }
}

/// PL-9
#[test]
fn a_vote_counts_the_optimizer_s_step_once() {
    let mut plan = nvfp4_training();
    let vote = position(&plan, 0, |op| matches!(op, Op::Vote(_)));
    repeat(&mut plan, vote);
    refused(
        &plan,
        &["PL-9", "step count, after 1 votes of this step", "step count, after 2 votes of this step"],
    );
}

/// PL-10. The loss scale alone would make the mean of several steps their sum.
#[test]
fn the_vote_needs_the_gradient_scale() {
    for (wrong, holds) in [
        (Content::Hyperparameters, "holds the hyperparameters"),
        (Content::LossScale, "holds the loss scale"),
    ] {
        let mut plan = nvfp4_training();
        let vote = position(&plan, 0, |op| matches!(op, Op::Vote(_)));
        let wrong = slot(&plan, wrong);
        let Op::Vote(CastVote { gradient_scale, .. }) = &mut plan.tasks[vote].op else { unreachable!() };
        *gradient_scale = wrong;
        refused(&plan, &["PL-10", "needs the gradient scale", holds]);
    }
}

/// PL-4: one task of the optimizer is of one parameter group.
#[test]
fn weights_of_two_parameter_groups_are_not_updated_as_one() {
    let mut plan = nvfp4_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(Adam { states, .. }) if states.len() > 1));
    let Op::Adam(Adam { states, .. }) = &plan.tasks[adam].op else { unreachable!() };
    let last = states.last().unwrap().weight;
    plan.weights.layouts[last.index()].parameters.weight_decay = NonNegative::new(0.0);
    refused(&plan, &["PL-4", "whose parameter groups differ", "give each parameter group a task of its own"]);
}

/// PL-10
#[test]
fn adam_needs_the_hyperparameters() {
    let mut plan = nvfp4_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    let wrong = slot(&plan, Content::OptimizerStep);
    let Op::Adam(Adam { hyperparameters, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    *hyperparameters = wrong;
    refused(&plan, &["PL-10", "needs the hyperparameters", "step count"]);
}
