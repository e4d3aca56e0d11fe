//! Features of random programs whose optimizer state is sharded over the replicas.
//!
//! Law: each is said of plans of which replicas have slices of shards, by what the plan holds and does.

use warpweft_format::Orientation;
use warpweft_plan::layout::{Content, WeightLayout};
use warpweft_plan::model::TensorParallel;
use warpweft_plan::op::{Op, SumGradient, SumTarget};
use warpweft_plan::plan::StepPlan;

use super::row::Feature;

/// All there are.
pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    let mut add = |name: &str, has: fn(&StepPlan) -> bool| {
        let has =
            move |plan: &StepPlan| plan.weights.layouts.iter().any(WeightLayout::is_in_slices) && has(plan);
        all.push((name.into(), Box::new(move |_, plan| has(plan))));
    };
    add("state over the replicas", |_| true);
    add("state over replicas of one rank", |plan| plan.weights.mesh.shards() == 1);
    add("slices in each of several optimizer instances", |plan| plan.weights.mesh.instances() > 1);
    add("slices of an expert in each of several optimizer instances", |plan| {
        let is_it = |layout: &WeightLayout| layout.shard.expert.is_some() && layout.is_in_slices();
        plan.weights.mesh.instances() > 1 && plan.weights.layouts.iter().any(is_it)
    });
    add("a published shard", |plan| publishes(plan, Orientation::Rowwise));
    add("a shard published in both orientations", |plan| {
        publishes(plan, Orientation::Rowwise) && publishes(plan, Orientation::Columnwise)
    });
    add("slices and a frozen weight beside them", |plan| {
        plan.weights.layouts.iter().any(|layout| layout.frozen)
    });
    add("slices of a weight that tensor parallelism cuts", |plan| {
        let is_cut = |layout: &WeightLayout| {
            layout.shard.tensor.and_then(|cut| cut.how) == Some(TensorParallel::RowParallel)
        };
        plan.weights.layouts.iter().any(|layout| layout.is_in_slices() && is_cut(layout))
    });
    add("slices whose sum steps continue", |plan| plan.accumulation.continues());
    add("a slice of a gradient added to another contribution", |plan| {
        plan.tasks.iter().any(|task| match &task.op {
            Op::SumGradient(SumGradient { parts, .. }) => {
                let more = |target| target == SumTarget::More;
                parts.iter().any(|part| plan.weights.layout(part.weight).is_in_slices() && more(part.target))
            }
            _ => false,
        })
    });
    add("slices with delayed scales", |plan| plan.weights.state.delayed.is_some());
    add("slices that a custom optimizer updates", |plan| plan.weights.state.custom_states.is_some());
    all
}

fn publishes(plan: &StepPlan, side: Orientation) -> bool {
    let is_it = |content| matches!(content, Content::Published(_, found) if found == side);
    plan.arena.slots.iter().any(|slot| is_it(slot.content))
}
