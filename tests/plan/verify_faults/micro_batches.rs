//! PL-2, PL-4, PL-10 over micro-batches: contributions are counted for each, buffers belong to one.

use warpweft_base::id::{BufferId, MicroBatchId};
use warpweft_plan::layout::Content;
use warpweft_plan::model::Mesh;
use warpweft_plan::op::{self, AddGradient, ExchangeGradient, Op};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};
use warpweft_plan::policy::{AcrossMicroBatches, Backward, ReduceEvery};

use super::edit::{position, refused, remove, repeat, serialize, slot, spread, weight};
use super::programs::{accumulating_program, policy};

/// Three micro-batches on 4 ranks, all gradients of a weight reduced together.
fn step() -> StepPlan {
    plan(&Policy { reduce_every: ReduceEvery::Step, ..policy() })
}

fn plan(policy: &Policy) -> StepPlan {
    StepPlan::build(&accumulating_program(3), policy, Mesh::new(4).unwrap()).unwrap()
}

fn added(plan: &StepPlan, nth: usize) -> usize {
    position(plan, nth, |op| matches!(op, Op::AddGradient(_)))
}

/// PL-4. Every micro-batch is a contribution of its own, however they are reduced.
#[test]
fn the_proof_counts_every_contribution_of_every_micro_batch() {
    for reduce_every in [ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step] {
        let plan = plan(&Policy { reduce_every, ..policy() });
        let each: usize = accumulating_program(3).calls().iter().map(|call| call.gradients.len()).sum();
        assert_eq!(verify(&plan).unwrap().gradients, 3 * each, "{reduce_every:?}");
    }
}

/// PL-4. *Only the last of several gradients of a tied weight surviving*, on the rank.
#[test]
fn a_gradient_that_is_not_added_on_the_rank_is_missed_and_found_where_it_lies() {
    let mut plan = step();
    spread(&mut plan);
    let lost = added(&plan, 2);
    remove(&mut plan, lost);
    let error = refused(&plan, &["PL-4", "is not in it", "it still lies in slot", "micro-batch 1"]);
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-4
#[test]
fn a_gradient_added_twice_on_the_rank_is_refused() {
    let mut plan = step();
    let twice = added(&plan, 0);
    repeat(&mut plan, twice);
    refused(&plan, &["PL-4", "(add gradient of", "a second time"]);
}

/// PL-4. *Gradient overwritten while it is still to be reduced*: the sum must stand until then.
#[test]
fn a_sum_that_is_reduced_before_all_are_added_is_missed() {
    let mut plan = step();
    spread(&mut plan);
    let embedding = weight(&plan, "embedding");
    let reduction = position(
        &plan,
        0,
        |op| matches!(op, Op::ExchangeGradient(ExchangeGradient { parts, .. }) if parts[0].weight == embedding),
    );
    let last = (0..plan.tasks.len()).rfind(
        |at| matches!(plan.tasks[*at].op, Op::AddGradient(AddGradient { weight, .. }) if weight == embedding),
    );
    let task = plan.tasks.remove(reduction);
    plan.tasks.insert(last.unwrap(), task);
    serialize(&mut plan);
    refused(&plan, &["PL-4", "(sum gradient of embedding) needs the other ranks' slices", "micro-batch 2"]);
}

/// PL-4
#[test]
fn a_gradient_of_another_weight_is_not_added_on_the_rank() {
    let mut plan = step();
    let (one, block) = (added(&plan, 0), weight(&plan, "block.0"));
    let other = position(
        &plan,
        0,
        |op| matches!(op, Op::AddGradient(AddGradient { weight, .. }) if *weight == block),
    );
    let Op::AddGradient(AddGradient { from: wrong, .. }) = plan.tasks[other].op else { unreachable!() };
    let Op::AddGradient(AddGradient { from, .. }) = &mut plan.tasks[one].op else { unreachable!() };
    *from = wrong;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "(add gradient of", "needs a call's gradient of"]);
}

/// PL-10. The mean is over as many micro-batches as there are.
#[test]
fn calls_must_be_the_same_in_every_micro_batch_and_as_many_as_the_plan_says() {
    let mut fewer = step();
    fewer.micro_batches = 2;
    refused(&fewer, &["PL-10", "not the same ones 2 times over"]);
    let mut none = step();
    none.micro_batches = 0;
    refused(&none, &["PL-10", "0 times over"]);
    let mut misnumbered = step();
    misnumbered.calls[0].micro_batch = MicroBatchId::new(1);
    refused(&misnumbered, &["PL-10", "not the same ones 3 times over"]);
}

/// PL-10. *Inputs of another micro-batch.*
#[test]
fn a_call_must_not_read_what_was_staged_for_another_micro_batch() {
    let mut plan = step();
    let tokens = BufferId::at(plan.buffers.iter().position(|spec| spec.name == "tokens").unwrap());
    let staged = |plan: &StepPlan, number| slot(plan, Content::Staging(tokens, MicroBatchId::new(number)));
    let (first, second) = (staged(&plan, 0), staged(&plan, 1));
    let copy = position(&plan, 0, |op| matches!(op, Op::Copy(op::Copy { from, .. }) if *from == second));
    let Op::Copy(op::Copy { from, .. }) = &mut plan.tasks[copy].op else { unreachable!() };
    *from = first;
    serialize(&mut plan);
    refused(&plan, &["PL-10", "needs buffer `tokens` as the user staged it for micro-batch 1"]);
}

/// PL-10
#[test]
fn the_output_of_every_micro_batch_must_be_staged() {
    let mut plan = step();
    let loss = BufferId::at(plan.buffers.iter().position(|spec| spec.name == "loss").unwrap());
    let staging = slot(&plan, Content::Staging(loss, MicroBatchId::new(1)));
    let copy = position(&plan, 0, |op| matches!(op, Op::Copy(op::Copy { to, .. }) if *to == staging));
    remove(&mut plan, copy);
    refused(&plan, &["PL-10", "in the staging of output `loss`"]);
}

/// PL-2. Fewer gathers, and every use still proven.
#[test]
fn weights_kept_across_micro_batches_are_gathered_once() {
    let gathers =
        |plan: &StepPlan| plan.tasks.iter().filter(|task| matches!(task.op, Op::AllGather(_))).count();
    let regathered = plan(&policy());
    let kept = plan(&Policy {
        backward: Backward::Keep,
        across_micro_batches: AcrossMicroBatches::Keep,
        ..policy()
    });
    assert_eq!(gathers(&kept), 3, "one for each sharded weight");
    assert!(gathers(&regathered) > 2 * gathers(&kept));
    assert_eq!(verify(&kept).unwrap().uses, verify(&regathered).unwrap().uses);
}
