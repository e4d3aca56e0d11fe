//! EX-1 on the CPU: a captured step, replayed, is the step that was issued.

use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::{CallId, EventId, SlotId, TaskId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Access, Gradient};
use warpweft_plan::op::{self, Accumulate, ClearFault, GatherPart, Op, Operand, OperandRole, ZeroPadding};

use crate::bodies::harness::{COMPUTE, Do, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, noise, run, sharded};
use crate::device::{closures, on_every_rank};

/// Gather, a call on what was gathered, reduce, accumulate: three lanes and their fences.
fn pipeline(ranks: u32) -> (Plan, SlotId, SlotId) {
    let mut plan = Plan::new(ranks, &[sharded(6, 5, Format::F32)]);
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    let main_grad = plan.resident("main grad", Content::MainGrad(W));
    let fault = plan.resident("fault", Content::FaultWord);
    let gathered = plan.transient("gathered", Content::Gathered(W, ROWWISE));
    let gradient = plan.transient("gradient", Content::Gradient(W, CallId::new(0)));
    let reduced = plan.transient("reduced", Content::ReducedGradient(W, CallId::new(0)));
    plan.op(COMPUTE, Op::ClearFault(ClearFault { fault }));
    plan.gather(&[GatherPart { weight: W, orientation: ROWWISE, from: shard, to: gathered }]);
    let call = plan.call(
        "grow",
        fault,
        vec![
            Operand { slot: gathered, access: Access::Read, role: OperandRole::Use(0) },
            Operand { slot: gradient, access: Access::Write, role: OperandRole::Gradient(W) },
        ],
    );
    plan.calls[0].uses.push(warpweft_plan::model::Use {
        weight: W,
        orientation: ROWWISE,
        form: warpweft_plan::model::Form::Dense,
        reuse: None,
    });
    plan.calls[0].gradients.push(Gradient { weight: W, element: ElementType::F32 });
    assert_eq!(call, TaskId::new(3));
    plan.op(COMPUTE, Op::ZeroPadding(ZeroPadding { weight: W, gradient }));
    plan.fence(COMPUTE, LINK);
    plan.op(LINK, Op::reduce_scatter(W, gradient, reduced));
    plan.fence(LINK, QUANTIZE);
    plan.op(
        QUANTIZE,
        Op::Accumulate(Accumulate { weight: W, from: reduced, into: main_grad, first: false, squares: None }),
    );
    (plan, shard, main_grad)
}

fn grow() -> Option<warpweft_plan::compute::ComputeFactory<warpweft_backend::cpu::CpuSurface>> {
    closures(|_, context| {
        let weight = context.dense(W, ROWWISE)?;
        let mut gradient = context.gradient(W)?;
        for (gradient, weight) in gradient.iter_mut().zip(weight.iter()) {
            *gradient = weight * weight + context.rank().index() as f32;
        }
        Ok(())
    })
}

#[test]
fn a_replayed_step_gives_the_bits_of_an_eager_one() {
    for ranks in 1..=4 {
        let results = |captured: bool| {
            let (plan, shard, main_grad) = pipeline(ranks);
            on_every_rank(plan, Default::default(), move |backend, plan| {
                let mut rank = Rank::start(backend, plan, grow()).unwrap();
                let elements = rank.plan.region(shard).bytes / 4;
                let graph = captured.then(|| rank.capture_graph().unwrap());
                assert!(
                    rank.get::<f32>(main_grad).iter().all(|value| *value == 0.0),
                    "capturing runs nothing"
                );
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

#[test]
fn eager_and_replayed_steps_may_alternate() {
    let (plan, shard, main_grad) = pipeline(2);
    on_every_rank(plan, Default::default(), move |backend, plan| {
        let mut rank = Rank::start(backend, plan, grow()).unwrap();
        rank.put(shard, &[2.0_f32; 15]);
        rank.step().unwrap();
        let graph = rank.capture_graph().unwrap();
        rank.replay(&graph).unwrap();
        rank.step().unwrap();
        rank.replay(&graph).unwrap();
        // Each step adds 2² + (0 + 1) / 2.
        assert_eq!(rank.get::<f32>(main_grad), [18.0; 15]);
    });
}

fn is_lane_error<T>(result: Result<T, BackendError>, part: &str) -> bool {
    matches!(result, Err(BackendError::Lane { reason, .. }) if reason.contains(part))
}

#[test]
fn captures_that_do_not_begin_or_end_are_refused() {
    let mut plan = Plan::new(1, &[]);
    let (_, from) = plan.buffer("from", 8, Residency::Resident);
    let (_, to) = plan.buffer("to", 8, Residency::Resident);
    plan.op(COMPUTE, Op::Copy(op::Copy { from, to }));
    run(plan, |rank| {
        rank.begin().unwrap();
        let (streams, bound) = (&mut rank.streams, &rank.bound);
        assert!(is_lane_error(rank.backend.end_capture(streams, bound), "does not capture"));
        rank.backend.begin_capture(streams, bound).unwrap();
        assert!(is_lane_error(rank.backend.begin_capture(streams, bound), "captures already"));
        let graph = rank.backend.end_capture(streams, bound).unwrap();
        rank.backend.launch(streams, bound, &graph).unwrap();
        assert!(is_lane_error(rank.backend.launch(&mut streams[..1], bound, &graph), "other lanes"));
        rank.synchronize().unwrap();
    });
}

#[test]
fn an_unknown_task_or_event_is_an_error_of_its_lane() {
    run(Plan::new(1, &[]), |rank| {
        rank.begin().unwrap();
        rank.obey(Do::Enqueue(COMPUTE, TaskId::new(3))).unwrap();
        assert!(is_lane_error(rank.synchronize(), "cannot run task 3"));
        rank.obey(Do::Wait(COMPUTE, EventId::new(1))).unwrap();
        assert!(is_lane_error(rank.synchronize(), "cannot wait for event 1"));
        rank.synchronize().unwrap();
    });
}
