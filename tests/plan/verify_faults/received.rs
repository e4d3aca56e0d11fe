//! PL-4 for gradients that every rank sums by itself: the received slices, the own slice, and their sum.

use warpweft_base::id::{CallId, SlotId};
use warpweft_plan::layout::{Content, Region, Residency, Slot};
use warpweft_plan::model::{Group, Mesh, Placement};
use warpweft_plan::op::{Accumulate, AddGradient, ExchangeGradient, Op, SumGradient, SumTarget, WireType};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};
use warpweft_plan::policy::{ReduceDtype, ReduceEvery};

use super::edit::{
    call, is_reduction, position, recount, reduced, refused, relocate, remove, repeat, serialize, slot,
    spread, summed, weight,
};
use super::programs::{
    accumulating_program, accumulating_training, f32_training, mxfp8_training, nvfp4_training, policy,
    replicated_training,
};

fn training() -> [StepPlan; 5] {
    [f32_training(), nvfp4_training(), mxfp8_training(), accumulating_training(), replicated_training()]
}

/// The `nth` sum of the weight called `name`.
fn sum_of(plan: &StepPlan, name: &str, nth: usize) -> usize {
    let wanted = weight(plan, name);
    position(
        plan,
        nth,
        |op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts[0].weight == wanted),
    )
}

/// The `nth` exchange of the weight called `name`.
fn exchange_of(plan: &StepPlan, name: &str, nth: usize) -> usize {
    let wanted = weight(plan, name);
    position(
        plan,
        nth,
        |op| matches!(op, Op::ExchangeGradient(ExchangeGradient { parts, .. }) if parts[0].weight == wanted),
    )
}

/// PL-4
#[test]
fn no_collective_of_these_plans_sums_a_gradient() {
    for plan in training() {
        assert!(plan.tasks.iter().all(|task| !matches!(task.op, Op::ReduceScatter(_))));
        let exchanged = plan.tasks.iter().filter(|task| is_reduction(&task.op)).count();
        let sums = plan.tasks.iter().filter(|task| matches!(task.op, Op::SumGradient(_))).count();
        assert!(sums > 0 && exchanged == sums);
    }
}

/// PL-4
#[test]
fn every_lost_step_of_a_gradient_s_way_is_missed() {
    let mut lost = 0;
    for plan in training() {
        let carries =
            |op: &Op| matches!(op, Op::ExchangeGradient(_) | Op::SumGradient(_) | Op::Accumulate(_));
        for task in (0..plan.tasks.len()).filter(|task| carries(&plan.tasks[*task].op)) {
            let mut plan = plan.clone();
            remove(&mut plan, task);
            refused(&plan, &["PL-4"]);
            lost += 1;
        }
    }
    assert!(lost > 40, "{lost}");
}

/// PL-4. *A sum before what it sums has landed.*
#[test]
fn a_sum_before_its_exchange_is_refused() {
    let mut plan = nvfp4_training();
    let (exchange, sum) = (exchange_of(&plan, "block.0", 0), sum_of(&plan, "block.0", 0));
    relocate(&mut plan, sum, exchange);
    let error = refused(
        &plan,
        &[
            "PL-4",
            "(sum gradient of block.0) needs the other ranks' slices in f32 of the gradient of `block.0` from call",
            "holds nothing",
            "exchange the gradient first",
        ],
    );
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-4. *The own slice overwritten* after the exchange, with every fence in place: peers have theirs, the
/// rank has lost its own.
#[test]
fn an_own_gradient_overwritten_between_exchange_and_sum_is_refused_even_when_ordered() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let gradient = |call: &str| {
        let id = plan.calls.iter().position(|other| other.name == call).unwrap();
        slot(&plan, Content::Gradient(weight(&plan, "embedding"), CallId::at(id)))
    };
    let (early, late) = (gradient("head.backward"), gradient("embed.backward"));
    plan.arena.slots[late.index()].region.offset = plan.arena.region(early).offset;
    let (exchange, sum) = (exchange_of(&plan, "embedding", 0), sum_of(&plan, "embedding", 0));
    let after = call(&plan, "embed.backward");
    assert!(exchange < after);
    relocate(&mut plan, sum, after.max(sum));
    refused(
        &plan,
        &[
            "PL-4",
            "(sum gradient of embedding) needs a call's gradient of `embedding`",
            "holds nothing any more",
            "(compute of embed.backward) overwrote it",
        ],
    );
}

/// PL-4. *What has landed overwritten* before it is summed.
#[test]
fn a_landed_slot_that_is_used_again_too_early_is_refused_even_when_ordered() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let (first, second) = (exchange_of(&plan, "block.1", 0), exchange_of(&plan, "block.0", 0));
    let (kept, again) = (reduced(&mut plan, first).to, reduced(&mut plan, second).to);
    assert_eq!(plan.arena.region(kept).bytes, plan.arena.region(again).bytes);
    plan.arena.slots[again.index()].region = plan.arena.region(kept);
    let sum = sum_of(&plan, "block.1", 0);
    relocate(&mut plan, sum, second.max(sum));
    refused(
        &plan,
        &[
            "PL-4",
            "(sum gradient of block.1) needs the other ranks' slices",
            "holds nothing any more",
            "(exchange gradient of block.0) overwrote it",
        ],
    );
}

/// PL-3. The same without an order: nothing makes the second exchange wait for the sum.
#[test]
fn a_landed_slot_that_two_collectives_share_is_refused() {
    let mut plan = nvfp4_training();
    let (first, second) = (exchange_of(&plan, "block.1", 0), exchange_of(&plan, "block.0", 0));
    let (kept, again) = (reduced(&mut plan, first).to, reduced(&mut plan, second).to);
    plan.arena.slots[again.index()].region = plan.arena.region(kept);
    let sum = sum_of(&plan, "block.1", 0);
    let lane = plan.tasks[sum].lane;
    let waits = std::mem::take(&mut plan.tasks[second].waits);
    plan.tasks[second].waits = waits.into_iter().filter(|wait| plan.task(*wait).lane != lane).collect();
    refused(&plan, &["PL-3", "sum gradient of block.1", "exchange gradient of block.0"]);
}

/// PL-4
#[test]
fn a_gradient_summed_twice_is_refused() {
    let mut plan = nvfp4_training();
    let second = sum_of(&plan, "embedding", 1);
    assert_eq!(summed(&mut plan, second)[0].target, SumTarget::More);
    repeat(&mut plan, second);
    let error = refused(
        &plan,
        &["PL-4", "adds the gradient of `embedding` from call `embed.backward` a second time"],
    );
    assert!(matches!(error, VerifyError::Accumulation { .. }));
}

/// PL-4
#[test]
fn a_collective_that_is_never_summed_is_reported_with_the_call_and_where_its_slices_lie() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let second = sum_of(&plan, "embedding", 1);
    remove(&mut plan, second);
    recount(&mut plan);
    let error = refused(
        &plan,
        &[
            "PL-4",
            "main grad of `embedding`",
            "gradient of call `embed.backward` is not in it",
            "it was exchanged into slot `embedding gradient of embed.backward from others` and not summed",
        ],
    );
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-4
#[test]
fn slices_of_another_weight_or_another_call_are_not_summed() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    // Another weight of the same shape.
    let (one, other) = (sum_of(&plan, "block.1", 0), sum_of(&plan, "block.0", 0));
    let wrong = summed(&mut plan, one)[0].received;
    summed(&mut plan, other)[0].received = wrong;
    refused(&plan, &["PL-4", "slices in f32 of the gradient of `block.0`", "of the gradient of `block.1`"]);
    // Another call of the same weight: what landed, and what is the own of it.
    for own in [false, true] {
        let mut plan = nvfp4_training();
        spread(&mut plan);
        let (first, second) = (sum_of(&plan, "embedding", 0), sum_of(&plan, "embedding", 1));
        let wrong = summed(&mut plan, first)[0];
        let part = &mut summed(&mut plan, second)[0];
        if own {
            part.own = wrong.own
        } else {
            part.received = wrong.received
        }
        serialize(&mut plan);
        refused(&plan, &["PL-4", "from call `embed.backward`", "from call `head.backward`"]);
    }
}

/// PL-4. *Only the last of several gradients surviving*, and *a warm-up that pollutes main grads*.
#[test]
fn only_the_first_sum_of_a_weight_overwrites() {
    let mut plan = nvfp4_training();
    let second = sum_of(&plan, "embedding", 1);
    summed(&mut plan, second)[0].target = SumTarget::First;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "begins the sum of `embedding` again and loses", "over call"]);
    let mut plan = nvfp4_training();
    let first = sum_of(&plan, "embedding", 0);
    summed(&mut plan, first)[0].target = SumTarget::More;
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-4", "holds what an earlier step left", "the first contribution of a step must overwrite"],
    );
}

/// PL-4. A main grad that has a mean of one replica's sums would get the mean of all replicas' on top, or
/// none of theirs.
#[test]
fn the_mean_over_one_replica_is_not_taken() {
    let mut plan = replicated_training();
    let sum = sum_of(&plan, "embedding", 0);
    let part = &mut summed(&mut plan, sum)[0];
    assert_eq!(part.target, SumTarget::Rows);
    // The mean where the sums over replicas expect rows.
    part.target = SumTarget::First;
    refused(&plan, &["PL-4", "summed over the ranks of one replica", "sum them over the replicas first"]);
    let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "embedding")));
    summed(&mut plan, sum)[0].into = main_grad;
    refused(&plan, &["PL-4", "summed over the ranks of one replica", "sum them over the replicas first"]);
    // With one replica it is the target that must fit its slot.
    let mut plan = nvfp4_training();
    let sum = sum_of(&plan, "embedding", 0);
    summed(&mut plan, sum)[0].target = SumTarget::Rows;
    serialize(&mut plan);
    refused(&plan, &["declared for other content"]);
}

/// PL-4
#[test]
fn a_sum_without_what_the_others_give_is_refused() {
    let mut plan = nvfp4_training();
    let sum = sum_of(&plan, "block.0", 0);
    summed(&mut plan, sum)[0].received = None;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "sums the gradient of `block.0` without what other ranks give"]);
}

/// PL-4. A replica of one rank has nobody to exchange with, and its plan says so.
#[test]
fn a_rank_that_is_alone_collectives_nothing_and_sums_all_the_same() {
    for mesh in [Mesh::new(1).unwrap(), Mesh::hybrid(3, 3).unwrap()] {
        let mut plan = StepPlan::build(&accumulating_program(1), &policy(), mesh).unwrap();
        assert!(plan.tasks.iter().all(|task| !is_reduction(&task.op)));
        let sum = sum_of(&plan, "embedding", 0);
        assert_eq!(summed(&mut plan, sum)[0].received, None);
        remove(&mut plan, sum);
        refused(&plan, &["PL-4"]);
    }
}

/// PL-4
#[test]
fn what_travelled_in_one_type_is_not_summed_in_another() {
    let policy = Policy { reduce_dtype: ReduceDtype::Bf16, ..policy() };
    let mut plan = StepPlan::build(&accumulating_program(1), &policy, Mesh::new(4).unwrap()).unwrap();
    let sum = sum_of(&plan, "embedding", 0);
    let Op::SumGradient(SumGradient { wire, .. }) = &mut plan.tasks[sum].op else { unreachable!() };
    assert_eq!(std::mem::replace(wire, WireType::F32), WireType::Bf16);
    refused(&plan, &["PL-4", "needs a call's gradient of `embedding`", "rounded to bf16"]);
}

/// PL-4. A sum of several calls' gradients is exchanged when it is complete, and may not grow after that.
#[test]
fn a_gradient_added_between_exchange_and_sum_is_refused() {
    let policy = Policy { reduce_every: ReduceEvery::Step, ..policy() };
    let mut plan = StepPlan::build(&accumulating_program(2), &policy, Mesh::new(4).unwrap()).unwrap();
    spread(&mut plan);
    let block = weight(&plan, "block.0");
    let added = position(
        &plan,
        0,
        |op| matches!(op, Op::AddGradient(AddGradient { weight, .. }) if *weight == block),
    );
    let exchange = exchange_of(&plan, "block.0", 0);
    relocate(&mut plan, added, exchange);
    refused(&plan, &["PL-4", "the other ranks' slices", "of the gradient of `block.0` from call"]);
}

/// PL-4. Both ways are ways: rows that a rank summed may be accumulated by a task of their own.
#[test]
fn rows_that_a_rank_summed_may_be_accumulated_apart() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let sum = sum_of(&plan, "embedding", 0);
    let embedding = weight(&plan, "embedding");
    let Op::SumGradient(SumGradient { parts, .. }) = &plan.tasks[sum].op else { unreachable!() };
    let (of, main_grad) = (plan.arena.slot(parts[0].own).content, parts[0].into);
    let Content::Gradient(_, call) = of else { unreachable!() };
    let content = Content::ReducedGradient(embedding, call);
    let region = Region {
        offset: plan.arena.resident_bytes + plan.arena.transient_bytes,
        bytes: content.bytes(&plan.weights, |_| 0),
    };
    let rows = SlotId::at(plan.arena.slots.len());
    plan.arena.slots.push(Slot { name: "rows".into(), content, residency: Residency::Transient, region });
    let part = &mut summed(&mut plan, sum)[0];
    (part.into, part.target) = (rows, SumTarget::Rows);
    repeat(&mut plan, sum);
    plan.tasks[sum + 1].op = Op::Accumulate(Accumulate {
        weight: embedding,
        from: rows,
        into: main_grad,
        first: true,
        squares: None,
    });
    spread(&mut plan);
    recount(&mut plan);
    verify(&plan).unwrap();
    remove(&mut plan, sum + 1);
    refused(&plan, &["PL-4"]);
}

/// PL-4
#[test]
fn a_replicated_gradient_is_not_summed_in_slices() {
    let mut plan = f32_training();
    let accumulation = position(&plan, 0, |op| matches!(op, Op::Accumulate(_)));
    let Op::Accumulate(Accumulate { weight, from, into, .. }) = plan.tasks[accumulation].op else {
        unreachable!()
    };
    assert_eq!(plan.weights.layout(weight).placement, Placement::Replicated);
    let part = warpweft_plan::op::SumPart {
        weight,
        own: from,
        received: None,
        into,
        target: SumTarget::First,
        squares: None,
    };
    plan.tasks[accumulation].op =
        Op::SumGradient(SumGradient { wire: WireType::F32, group: Group::Shard, parts: vec![part] });
    refused(&plan, &["PL-4", "of which every rank has all rows"]);
}
