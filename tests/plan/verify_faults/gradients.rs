//! PL-4 for gradients that collectives sum: the way of each to its main grad. What differs where ranks do: `received`.

use warpweft_base::id::CallId;
use warpweft_plan::layout::Content;
use warpweft_plan::op::{Accumulate, AllReduce, GradNorm, Op, ReduceScatter, Reduction};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{
    call, position, recount, refused, relocate, remove, repeat, serialize, slot, spread, weight,
};

use super::programs::by_collectives::{f32_training, mxfp8_training, nvfp4_training};

fn training() -> [StepPlan; 3] {
    [f32_training(), nvfp4_training(), mxfp8_training()]
}

fn accumulate(plan: &StepPlan, name: &str, nth: usize) -> usize {
    let wanted = weight(plan, name);
    position(plan, nth, |op| matches!(op, Op::Accumulate(Accumulate { weight, .. }) if *weight == wanted))
}

fn set_first(plan: &mut StepPlan, position: usize, to: bool) {
    let Op::Accumulate(Accumulate { first, .. }) = &mut plan.tasks[position].op else { unreachable!() };
    assert_ne!(*first, to);
    *first = to;
}

/// PL-4
#[test]
fn a_lost_reduce_scatter_leaves_nothing_to_accumulate() {
    let mut plan = nvfp4_training();
    let lost = position(&plan, 0, |op| matches!(op, Op::ReduceScatter(_)));
    remove(&mut plan, lost);
    let error = refused(
        &plan,
        &["PL-4", "(accumulate of embedding) needs a reduced gradient of `embedding`", "holds nothing"],
    );
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-4
#[test]
fn every_lost_step_of_a_gradient_s_way_is_missed() {
    let mut lost = 0;
    for plan in training() {
        let carries = |op: &Op| {
            matches!(
                op,
                Op::ReduceScatter(_)
                    | Op::Accumulate(_)
                    | Op::ZeroPadding(_)
                    | Op::AllReduce(AllReduce { reduction: Reduction::Sum, .. })
            )
        };
        for task in (0..plan.tasks.len()).filter(|task| carries(&plan.tasks[*task].op)) {
            let mut plan = plan.clone();
            remove(&mut plan, task);
            refused(&plan, &["PL-4"]);
            lost += 1;
        }
    }
    assert!(lost > 30, "{lost}");
}

/// PL-4
#[test]
fn a_lost_accumulation_is_reported_with_the_call_and_where_its_gradient_lies() {
    let mut plan = nvfp4_training();
    let second = accumulate(&plan, "embedding", 1);
    remove(&mut plan, second);
    let error = refused(
        &plan,
        &[
            "PL-4",
            "main grad of `embedding`",
            "gradient of call `embed.backward` is not in it",
            "not accumulated",
        ],
    );
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-4
#[test]
fn a_double_accumulation_is_refused() {
    let mut plan = nvfp4_training();
    let second = accumulate(&plan, "embedding", 1);
    repeat(&mut plan, second);
    let error = refused(
        &plan,
        &["PL-4", "adds the gradient of `embedding` from call `embed.backward` a second time"],
    );
    assert!(matches!(error, VerifyError::Accumulation { .. }));
}

/// PL-4. *Only the last of several gradients of a tied weight surviving*.
#[test]
fn only_the_last_of_several_gradients_of_a_tied_weight_surviving_is_refused() {
    for (mut plan, name) in [(nvfp4_training(), "embedding"), (f32_training(), "bias")] {
        let second = accumulate(&plan, name, 1);
        set_first(&mut plan, second, true);
        serialize(&mut plan);
        refused(&plan, &["PL-4", &format!("begins the sum of `{name}` again and loses"), "over call"]);
    }
}

/// PL-4. *A warm-up that pollutes main grads*: what an earlier step left must not be added to.
#[test]
fn a_sum_that_a_warm_up_could_pollute_is_refused() {
    for (mut plan, name) in [(nvfp4_training(), "embedding"), (f32_training(), "bias")] {
        let first = accumulate(&plan, name, 0);
        set_first(&mut plan, first, false);
        serialize(&mut plan);
        refused(
            &plan,
            &["PL-4", "holds what an earlier step left", "the first contribution of a step must overwrite"],
        );
    }
}

/// PL-4
#[test]
fn padding_rows_that_are_not_zero_are_not_reduced() {
    let mut plan = f32_training();
    let zeroed = position(&plan, 0, |op| matches!(op, Op::ZeroPadding(_)));
    remove(&mut plan, zeroed);
    refused(&plan, &["PL-4", "with zeroed padding rows", "its padding rows not zeroed"]);
}

/// PL-4. A closure writes the real rows alone, so zeros from before the call are still there.
#[test]
fn padding_may_be_zeroed_before_the_call_as_well() {
    let mut plan = f32_training();
    spread(&mut plan);
    let zeroed = position(&plan, 0, |op| matches!(op, Op::ZeroPadding(_)));
    relocate(&mut plan, zeroed, zeroed - 1);
    assert!(matches!(plan.tasks[zeroed].op, Op::Compute(_)));
    recount(&mut plan);
    assert!(verify(&plan).is_ok(), "{}", verify(&plan).unwrap_err());
}

/// PL-4
#[test]
fn a_gradient_of_another_weight_is_not_added() {
    let mut plan = nvfp4_training();
    let (one, other) = (accumulate(&plan, "block.0", 0), accumulate(&plan, "block.1", 0));
    let Op::Accumulate(Accumulate { from: wrong, .. }) = plan.tasks[other].op else { unreachable!() };
    let Op::Accumulate(Accumulate { from, .. }) = &mut plan.tasks[one].op else { unreachable!() };
    *from = wrong;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "needs a reduced gradient of `block.0`", "block.1"]);
}

/// PL-4
#[test]
fn a_sharded_gradient_must_not_be_added_before_it_is_reduced() {
    let mut plan = nvfp4_training();
    let (added, reduced) = (accumulate(&plan, "block.1", 0), weight(&plan, "block.1"));
    let reduced = position(
        &plan,
        0,
        |op| matches!(op, Op::ReduceScatter(ReduceScatter { parts, .. }) if parts[0].weight == reduced),
    );
    let full = super::edit::reduced(&mut plan, reduced).from;
    let Op::Accumulate(Accumulate { from, .. }) = &mut plan.tasks[added].op else { unreachable!() };
    *from = full;
    serialize(&mut plan);
    refused(
        &plan,
        &[
            "PL-4",
            "needs a reduced gradient of `block.1`",
            "exchange and sum the gradient, or reduce-scatter it, first",
        ],
    );
}

/// PL-4
#[test]
fn a_replicated_sum_must_be_complete_before_it_is_all_reduced() {
    let mut plan = f32_training();
    let all_reduce =
        position(&plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Sum, .. })));
    let second = accumulate(&plan, "bias", 1);
    relocate(&mut plan, all_reduce, second);
    refused(
        &plan,
        &["PL-4", "main grad of `bias`", "call `down.backward` is not in it", "and no all-reduce after that"],
    );
}

/// PL-4
#[test]
fn gradients_are_reduced_by_sum_and_amaxes_by_maximum() {
    let swap = |plan: &mut StepPlan, from: Reduction, to: Reduction| {
        let wrong = position(
            plan,
            0,
            |op| matches!(op, Op::AllReduce(AllReduce { reduction, .. }) if *reduction == from),
        );
        let Op::AllReduce(AllReduce { reduction, .. }) = &mut plan.tasks[wrong].op else { unreachable!() };
        *reduction = to;
    };
    let mut plan = f32_training();
    swap(&mut plan, Reduction::Sum, Reduction::Max);
    refused(&plan, &["PL-9", "since it takes maxima", "gradient sum of `bias`"]);
    let mut plan = nvfp4_training();
    let sums =
        position(&plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Sum, .. })));
    let maxima =
        position(&plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, .. })));
    assert!(sums < maxima);
    swap(&mut plan, Reduction::Max, Reduction::Sum);
    refused(&plan, &["PL-4", "since it takes sums", "amaxes of bucket"]);
}

/// PL-4
#[test]
fn the_norm_counts_every_main_grad_once() {
    let norm = |plan: &StepPlan| position(plan, 0, |op| matches!(op, Op::GradNorm(_)));
    let mut plan = f32_training();
    let at = norm(&plan);
    let Op::GradNorm(GradNorm { squares, .. }) = &mut plan.tasks[at].op else { unreachable!() };
    let left_out = squares.remove(1);
    let error = refused(&plan, &["PL-4", "counts the main grad of `down` 0 times"]);
    assert!(matches!(error, VerifyError::Coverage { .. }));
    let Op::GradNorm(GradNorm { squares, .. }) = &mut plan.tasks[at].op else { unreachable!() };
    squares.extend([left_out, left_out]);
    refused(&plan, &["PL-4", "counts the main grad of `down` 2 times"]);
}

/// PL-4
#[test]
fn a_contribution_after_the_norm_is_too_late() {
    let mut plan = nvfp4_training();
    let (late, norm) =
        (accumulate(&plan, "embedding", 1), position(&plan, 0, |op| matches!(op, Op::GradNorm(_))));
    relocate(&mut plan, late, norm);
    refused(&plan, &["PL-4", "(grad norm of main grads)", "call `embed.backward` is not in it"]);
}

/// PL-4. *Gradient overwritten* before its reduction, with every fence in place.
#[test]
fn a_gradient_overwritten_before_its_reduction_is_refused_even_when_ordered() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let gradient = |call: &str| {
        let id = plan.calls.iter().position(|other| other.name == call).unwrap();
        slot(&plan, Content::Gradient(weight(&plan, "embedding"), CallId::at(id)))
    };
    let (early, late) = (gradient("head.backward"), gradient("embed.backward"));
    plan.arena.slots[late.index()].region.offset = plan.arena.region(early).offset;
    let reduction = position(&plan, 0, |op| matches!(op, Op::ReduceScatter(_)));
    let after = call(&plan, "embed.backward");
    relocate(&mut plan, reduction, after);
    refused(
        &plan,
        &[
            "PL-4",
            "(reduce-scatter of embedding) needs a call's gradient of `embedding`",
            "holds nothing any more",
            "(compute of embed.backward) overwrote it",
        ],
    );
}

/// PL-4. Seen at the plan's end, since no norm requests the gradients.
#[test]
fn a_plan_without_an_optimizer_must_end_with_complete_main_grads() {
    let mut plan = f32_training();
    plan.updates_weights = false;
    plan.exit = plan.entry;
    let norm = position(&plan, 0, |op| matches!(op, Op::GradNorm(_)));
    plan.tasks.truncate(norm);
    serialize(&mut plan);
    recount(&mut plan);
    verify(&plan).unwrap();
    let mut lost = 0;
    for task in (0..plan.tasks.len()).filter(|task| matches!(plan.tasks[*task].op, Op::Accumulate(_))) {
        let mut plan = plan.clone();
        remove(&mut plan, task);
        refused(&plan, &["PL-4"]);
        lost += 1;
    }
    assert_eq!(lost, 4);
    let down = accumulate(&plan, "down", 0);
    remove(&mut plan, down);
    refused(
        &plan,
        &[
            "PL-4 (",
            "): the end of plan `train`",
            "gradient of call `down.backward` is not in it",
            "was reduced into slot",
        ],
    );
}
