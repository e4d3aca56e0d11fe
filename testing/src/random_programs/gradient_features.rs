//! Features of gradients in random programs and their plans: how they are written, travel and are summed.
//!
//! Law: as of `feature`, which has these rows among its own.

use warpweft_format::ElementType;
use warpweft_plan::model::{Call, Gradient, Group, Placement};
use warpweft_plan::op::{AllReduce, Op, SumGradient, SumTarget, WireType};
use warpweft_plan::plan::StepPlan;
use warpweft_plan::policy::ReduceDtype;

use super::Sample;
use super::row::Feature;

pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    let mut add = |name: &str, has: fn(&Sample, &StepPlan) -> bool| all.push((name.into(), Box::new(has)));
    add("gradients in bf16", |_, plan| rounds(plan, ElementType::F32, WireType::Bf16));
    add("gradients in MXFP8", |_, plan| rounds(plan, ElementType::F32, WireType::Mxfp8));
    add("gradients in MXFP8 that calls write in bf16", |_, plan| {
        rounds(plan, ElementType::Bf16, WireType::Mxfp8)
    });
    add("sums of blocks in MXFP8", |_, plan| {
        let quantizes = |op: &SumGradient| op.parts.iter().any(|part| part.target == SumTarget::Quantized);
        plan.tasks.iter().any(|task| matches!(&task.op, Op::SumGradient(op) if quantizes(op)))
    });
    add("gradients written in bf16, with padding and without", |sample, plan| {
        let is_padded = |weight| {
            let shard = &plan.weights.layout(weight).shard;
            shard.padded_rows() > shard.shape.rows
        };
        let all = || sample.program.calls().iter().flat_map(|call| &call.gradients);
        let written = |padded| {
            move |gradient: &&Gradient| {
                gradient.element == ElementType::Bf16 && is_padded(gradient.weight) == padded
            }
        };
        all().any(|gradient| written(true)(&gradient)) && all().any(|gradient| written(false)(&gradient))
    });
    add("gradients of one call written in f32 and in bf16, travelling in both", |_, plan| {
        let mixed = |call: &Call| {
            [ElementType::F32, ElementType::Bf16]
                .into_iter()
                .all(|element| call.gradients.iter().any(|gradient| gradient.element == element))
        };
        plan.policy.reduce_dtype == ReduceDtype::F32 && plan.calls.iter().any(mixed)
    });
    add("gradients added on the rank", |_, plan| {
        plan.tasks.iter().any(|task| matches!(task.op, Op::AddGradient(_)))
    });
    add("gradients without an optimizer", |_, plan| {
        let adds = |op: &Op| matches!(op, Op::Accumulate(_) | Op::SumGradient(_));
        !plan.updates_weights && plan.tasks.iter().any(|task| adds(&task.op))
    });
    for levels in 2..=3 {
        for replicated in [false, true] {
            let has = move |_: &Sample, plan: &StepPlan| {
                let mesh = plan.weights.mesh;
                let sums = plan.tasks.iter().any(|task| matches!(task.op, Op::SumGradient(_)));
                sums && (mesh.depth(Group::Shard), mesh.replicas() > 1) == (levels, replicated)
            };
            let of = if replicated { "several replicas" } else { "one replica" };
            all.push((format!("gradients summed in {levels} levels in {of}"), Box::new(has)));
        }
    }
    for levels in 2..=3 {
        for replicas in [false, true] {
            let has = move |_: &Sample, plan: &StepPlan| {
                let is_sum =
                    |op: &Op| matches!(op, Op::AllReduce(AllReduce { group: Group::WorldLevel(_), .. }));
                let sums = plan.tasks.iter().filter(|task| is_sum(&task.op)).count();
                (sums, plan.weights.mesh.replicas() > 1) == (levels, replicas)
            };
            let of = if replicas { "several replicas" } else { "one replica" };
            all.push((format!("replicated weights summed in {levels} levels in {of}"), Box::new(has)));
        }
    }
    for over in [Group::Shard, Group::Replica] {
        let has = move |_: &Sample, plan: &StepPlan| {
            let mesh = plan.weights.mesh;
            mesh.tensor() > 1
                && mesh.depth(over) > 1
                && plan
                    .weights
                    .layouts
                    .iter()
                    .any(|layout| layout.placement == Placement::Sharded && layout.shard.group() == over)
        };
        all.push((format!("gradients summed over the {over} group in levels"), Box::new(has)));
    }
    all
}

fn rounds(plan: &StepPlan, element: ElementType, wire: WireType) -> bool {
    let is_it = |op: &Op| matches!(op, Op::RoundGradient(op) if (op.element, op.wire) == (element, wire));
    plan.tasks.iter().any(|task| is_it(&task.op))
}
