//! Plans that name what they do not contain: an error, never a panic.

use warpweft_base::id::{BucketId, BufferId, CallId, EventId, LaneId, SlotId, TaskId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::layout::Content;
use warpweft_plan::model::Gradient;
use warpweft_plan::op::{
    AllGather, AllReduce, ClearFault, Compute, ExchangeGradient, Op, OperandRole, ReduceScatter, SumGradient,
};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{call, gathered, position, refused};
use super::programs::{by_collectives, nvfp4_training};

#[test]
fn every_name_of_something_absent_is_refused_without_a_panic() {
    const FAR: u32 = 9999;
    type Damage = fn(&mut StepPlan);
    let all: [(&str, Damage); 17] = [
        ("lane 9999", |plan| plan.tasks[0].lane = LaneId::new(FAR)),
        ("event 9999", |plan| plan.tasks[0].signals = Some(EventId::new(FAR))),
        ("18446744073709551615 events", |plan| plan.events = usize::MAX),
        ("task 9999", |plan| plan.tasks[5].waits.push(TaskId::new(FAR))),
        ("task 9999", |plan| plan.tasks[5].release = Some(TaskId::new(FAR))),
        ("task 9999", |plan| plan.bounds.live_peak = TaskId::new(FAR)),
        ("slot 9999", |plan| plan.tasks[0].op = Op::ClearFault(ClearFault { fault: SlotId::new(FAR) })),
        ("call 9999", |plan| {
            let task = call(plan, "head");
            let Op::Compute(Compute { call, .. }) = &mut plan.tasks[task].op else { unreachable!() };
            *call = CallId::new(FAR);
        }),
        ("buffer 9999", |plan| {
            let task = call(plan, "head");
            let Op::Compute(Compute { operands, .. }) = &mut plan.tasks[task].op else { unreachable!() };
            operands[0].role = OperandRole::Buffer(BufferId::new(FAR));
        }),
        ("weight 9999", |plan| {
            let task = call(plan, "head");
            let Op::Compute(Compute { operands, .. }) = &mut plan.tasks[task].op else { unreachable!() };
            operands[0].role = OperandRole::Gradient(WeightId::new(FAR));
        }),
        ("weight 9999", |plan| {
            let weight = WeightId::new(FAR);
            plan.calls[0].gradients.push(Gradient { weight, element: ElementType::F32 });
        }),
        ("weight 9999", |plan| plan.arena.slots[40].content = Content::Transposed(WeightId::new(FAR))),
        ("call 9999", |plan| {
            plan.arena.slots[40].content = Content::Gradient(WeightId::new(0), CallId::new(FAR))
        }),
        ("bucket 9999", |plan| plan.arena.slots[0].content = Content::Encode(BucketId::new(FAR))),
        ("bucket 9999", |plan| plan.weights.layouts[0].bucket = BucketId::new(FAR)),
        ("weight 9999", |plan| plan.weights.buckets[0].weights[0] = WeightId::new(FAR)),
        ("place 7 of bucket 0", |plan| plan.weights.layouts[0].position = 7),
    ];
    for (names, damage) in all {
        let mut plan = nvfp4_training();
        damage(&mut plan);
        let error = refused(&plan, &["malformed plan: ", names]);
        assert!(matches!(error, VerifyError::Malformed { .. }), "{error}");
    }
}

fn drain<T>(parts: &mut Vec<T>) -> bool {
    parts.drain(..).next().is_some()
}

#[test]
fn a_collective_or_sum_of_no_weight_is_refused() {
    type Empty = fn(&mut Op) -> bool;
    let emptied: [Empty; 4] = [
        |op| match op {
            Op::AllGather(AllGather { parts, .. }) => drain(parts),
            _ => false,
        },
        |op| match op {
            Op::ExchangeGradient(ExchangeGradient { parts, .. }) => drain(parts),
            _ => false,
        },
        |op| match op {
            Op::SumGradient(SumGradient { parts, .. }) => drain(parts),
            _ => false,
        },
        |op| match op {
            Op::ReduceScatter(ReduceScatter { parts, .. }) => drain(parts),
            _ => false,
        },
    ];
    for (number, empty) in emptied.into_iter().enumerate() {
        let mut plan = if number < 3 { nvfp4_training() } else { by_collectives::nvfp4_training() };
        assert!(plan.tasks.iter_mut().any(|task| empty(&mut task.op)));
        refused(&plan, &["malformed plan: ", "names no weight", "at least one"]);
    }
}

#[test]
fn an_all_reduce_of_nothing_is_refused() {
    let mut plan = nvfp4_training();
    let task = position(&plan, 0, |op| matches!(op, Op::AllReduce(_)));
    let Op::AllReduce(AllReduce { pairs, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    pairs.clear();
    refused(&plan, &["malformed plan: ", "names no value", "at least one"]);
}

#[test]
fn a_weight_in_an_op_must_exist() {
    let mut plan = nvfp4_training();
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    gathered(&mut plan, gather).weight = WeightId::new(9999);
    refused(
        &plan,
        &["malformed plan: task 2 (all-gather of embedding) names weight 9999, but the plan has 4 weights"],
    );
}
