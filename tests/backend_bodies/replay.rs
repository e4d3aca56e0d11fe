//! EX-1: a captured step, replayed, is the step that was issued.

use warpweft_base::id::{CallId, SlotId, TaskId};
use warpweft_format::Format;
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::Group;
use warpweft_plan::op::{
    self, ClearFault, ExchangeGradient, GatherPart, Op, ReducePart, SumGradient, SumPart, SumTarget,
    WireType, ZeroPadding,
};

use crate::device::most_captured_ranks;

use super::harness::{COMPUTE, Do, LINK, Plan, QUANTIZE, ROWWISE, W, noise, run, sharded};

/// Gather, a copy for a backward, exchange, sum: three lanes and their fences.
fn pipeline(ranks: u32) -> (Plan, SlotId, SlotId) {
    let mut plan = Plan::new(ranks, &[sharded(6, 5, Format::F32)]);
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    let main_grad = plan.resident("main grad", Content::MainGrad(W));
    let fault = plan.resident("fault", Content::FaultWord);
    let gathered = plan.transient("gathered", Content::Gathered(W, ROWWISE));
    let gradient = plan.transient("gradient", Content::Gathered(W, ROWWISE));
    let wire = WireType::F32;
    let received = plan.transient("landed", Content::ReceivedGradient(W, CallId::new(0), wire));
    plan.op(COMPUTE, Op::ClearFault(ClearFault { fault }));
    plan.gather(&[GatherPart { weight: W, orientation: ROWWISE, from: shard, to: gathered }]);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: gathered, to: gradient }));
    plan.op(COMPUTE, Op::ZeroPadding(ZeroPadding { weight: W, gradient }));
    plan.fence(COMPUTE, LINK);
    let part = ReducePart { weight: W, from: gradient, to: received };
    plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire, group: Group::Shard, parts: vec![part] }));
    plan.fence(LINK, QUANTIZE);
    let (received, target) = (Some(received), SumTarget::More);
    let part = SumPart { weight: W, own: gradient, received, into: main_grad, target, squares: None };
    plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire, group: Group::Shard, parts: vec![part] }));
    (plan, shard, main_grad)
}

fn a_replayed_step_gives_the_bits_of_an_eager_one_without_closures() {
    for ranks in 1..=most_captured_ranks() {
        let results = |captured: bool| {
            let (plan, shard, main_grad) = pipeline(ranks);
            run(plan, move |rank| {
                let elements = rank.plan.region(shard).bytes / 4;
                // As the executor does it: what is made when it is first needed is made outside of a capture.
                rank.step().unwrap();
                let graph = captured.then(|| rank.capture_graph().unwrap());
                let untouched = rank.get::<f32>(main_grad);
                assert!(untouched.iter().all(|value| *value == 0.0), "capturing runs nothing");
                for step in 0..5 {
                    rank.put(shard, &noise(elements, step * 10 + rank.number() as u32));
                    match &graph {
                        Some(graph) => rank.replay(graph).unwrap(),
                        None => rank.step().unwrap(),
                    }
                }
                rank.get::<f32>(main_grad)
            })
        };
        let eager = results(false);
        assert!(eager.concat().iter().any(|value| *value != 0.0));
        assert_eq!(eager, results(true));
    }
}

fn eager_steps_and_replays_of_one_plan_may_alternate() {
    let (plan, shard, main_grad) = pipeline(most_captured_ranks().min(2));
    run(plan, move |rank| {
        let elements = rank.plan.region(shard).bytes / 4;
        rank.put(shard, &vec![2.0_f32; elements]);
        rank.step().unwrap();
        let graph = rank.capture_graph().unwrap();
        rank.replay(&graph).unwrap();
        rank.step().unwrap();
        rank.replay(&graph).unwrap();
        assert_eq!(rank.get::<f32>(main_grad), vec![8.0; rank.plan.region(main_grad).bytes / 4]);
    });
}

/// The pipeline in two segments, and the copy between them enqueued anew. Fences that cross a segment's end
/// are left out: a capture begins and ends on the first lane, which is all that orders the two and the
/// copy.
fn two_segments_and_a_task_between_them_give_the_bits_of_an_eager_step() {
    let copy = TaskId::new(2);
    for ranks in 1..=most_captured_ranks() {
        let results = |captured: bool| {
            let (plan, shard, main_grad) = pipeline(ranks);
            run(plan, move |rank| {
                let elements = rank.plan.region(shard).bytes / 4;
                rank.step().unwrap();
                let script = rank.plan.script.clone();
                let between = script.iter().position(|entry| *entry == Do::Enqueue(COMPUTE, copy)).unwrap();
                let crosses = |entry: &Do| matches!(entry, Do::Record(LINK, _) | Do::Wait(COMPUTE, _));
                let (first, second): (Vec<Do>, _) = (
                    script[..between].iter().copied().filter(|entry| !crosses(entry)).collect(),
                    &script[between + 1..],
                );
                let segments = captured.then(|| {
                    rank.begin().unwrap();
                    [rank.capture_segment(&first).unwrap(), rank.capture_segment(second).unwrap()]
                });
                let untouched = rank.get::<f32>(main_grad);
                assert!(untouched.iter().all(|value| *value == 0.0), "capturing runs nothing");
                for step in 0..5 {
                    rank.put(shard, &noise(elements, step * 10 + rank.number() as u32));
                    match &segments {
                        Some([first, second]) => {
                            rank.begin().unwrap();
                            rank.launch(first).unwrap();
                            rank.obey(Do::Enqueue(COMPUTE, copy)).unwrap();
                            rank.launch(second).unwrap();
                            rank.synchronize().unwrap();
                        }
                        None => rank.step().unwrap(),
                    }
                }
                rank.get::<f32>(main_grad)
            })
        };
        let eager = results(false);
        assert!(eager.concat().iter().any(|value| *value != 0.0));
        assert_eq!(eager, results(true));
    }
}

/// What a replay leaves in its times is of that replay, task by task, whatever the device is timed by.
fn a_replayed_step_is_timed_like_an_issued_one() {
    let mut plan = Plan::new(1, &[]);
    let (_, one) = plan.buffer("one", 4000, Residency::Resident);
    let (_, two) = plan.buffer("two", 4000, Residency::Resident);
    let (_, three) = plan.buffer("three", 4000, Residency::Resident);
    let (_, four) = plan.buffer("four", 4000, Residency::Resident);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: one, to: two }));
    plan.fence(COMPUTE, QUANTIZE);
    plan.op(QUANTIZE, Op::Copy(op::Copy { from: two, to: three }));
    plan.fence(QUANTIZE, COMPUTE);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: three, to: four }));
    let mut steps = run(plan, |rank| {
        rank.step().unwrap();
        let issued = rank.intervals();
        let graph = rank.capture_graph().unwrap();
        let replays = (0..3).map(|_| {
            rank.replay(&graph).unwrap();
            rank.intervals()
        });
        std::iter::once(issued).chain(replays.collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    let steps = steps.remove(0);
    let mut over = 0;
    for step in &steps {
        assert_eq!(step.len(), 3);
        for task in step {
            assert!(over <= task.begin && task.begin < task.end, "{steps:?}");
            over = task.end;
        }
    }
}

bodies! {
    a_replayed_step_is_timed_like_an_issued_one,
    two_segments_and_a_task_between_them_give_the_bits_of_an_eager_step,
    a_replayed_step_gives_the_bits_of_an_eager_one_without_closures,
    eager_steps_and_replays_of_one_plan_may_alternate,
}
