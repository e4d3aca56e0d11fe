//! Features of random programs with the weights of experts.
//!
//! Law: each is said of plans in which some weight is of an expert that has axes of its own, by what the plan holds and
//! does. Where a row says `own experts`, other ranks have others in their place.

use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::{Accumulation, Group, StepProgram};
use warpweft_plan::op::{Op, SumGradient};
use warpweft_plan::plan::StepPlan;

use super::row::Feature;

/// All there are.
pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    for (copies, of) in [(false, "of which there is one copy"), (true, "of which there are copies")] {
        let has = move |_: &StepProgram, plan: &StepPlan| (copies_of_experts(plan) > 1) == copies;
        all.push(row(&format!("experts, {of}"), 1, has));
        for ep in [2, 4] {
            for (is_one, over) in [(true, "one rank"), (false, "several ranks")] {
                let has = move |_: &StepProgram, plan: &StepPlan| {
                    let mesh = plan.weights.mesh;
                    let of_mesh = (mesh.expert(), mesh.expert_shards() == 1, copies_of_experts(plan) > 1);
                    of_mesh == (ep, is_one, copies)
                };
                all.push(row(&format!("own experts of {ep} ranks, each over {over}, {of}"), ep, has));
            }
        }
    }
    let mut add = |name: &str, ep: u32, has: fn(&StepPlan) -> bool| {
        all.push(row(name, ep, move |_, plan| has(plan)));
    };
    let in_levels = |plan: &StepPlan| {
        let sums = |group| matches!(group, Some(Group::ExpertLevel(_)));
        plan.tasks.iter().any(|task| sums(task.op.group()))
    };
    add("gradients of experts summed in levels", 1, in_levels);
    add("gradients of own experts summed in levels", 2, in_levels);
    add("several own experts of a rank", 2, |plan| {
        experts(plan).any(|layout| layout.expert.is_some_and(|expert| expert.of_rank > 1))
    });
    add("state of own experts over their copies", 2, |plan| experts(plan).any(WeightLayout::is_in_slices));
    add("own experts beside a weight that all ranks have", 2, |plan| {
        plan.weights.layouts.iter().any(|layout| layout.shard.expert.is_none() && !layout.frozen)
    });
    add("own experts with replicas", 2, |plan| plan.weights.mesh.replicas() > 1);
    add("own experts with tensor parallelism", 2, |plan| plan.weights.mesh.tensor() > 1);
    add("own experts that share a scale", 2, |plan| {
        let mut buckets = plan.weights.buckets.iter().filter(|bucket| bucket.expert);
        buckets.any(|bucket| bucket.weights.iter().any(|weight| plan.weights.scaled_with(*weight).len() > 1))
    });
    add("own experts in several micro-batches", 2, |plan| plan.micro_batches > 1);
    for part in [Accumulation::First, Accumulation::Next, Accumulation::Last] {
        let has = move |_: &StepProgram, plan: &StepPlan| plan.accumulation == part;
        all.push(row(&format!("the {part} step of an accumulation of gradients of own experts"), 2, has));
    }
    let mut add = |name: &str, ep: u32, has: fn(&StepPlan) -> bool| {
        all.push(row(name, ep, move |_, plan| has(plan)));
    };
    add("own experts with delayed scales", 2, |plan| plan.weights.state.delayed.is_some());
    add("own experts that a custom optimizer updates", 2, |plan| {
        plan.updates_weights && plan.weights.state.custom_states.is_some()
    });
    add("a round of own experts as whole matrices", 2, |plan| {
        let is_expert = |weight| plan.weights.layout(weight).shard.expert.is_some();
        plan.tasks.iter().any(|task| match &task.op {
            Op::Transform(op) => op.weights.iter().copied().any(is_expert),
            _ => false,
        })
    });
    add("a sum of gradients of own experts over one rank", 2, |plan| {
        plan.tasks.iter().any(|task| match &task.op {
            Op::SumGradient(SumGradient { parts, .. }) => parts.iter().any(|part| {
                part.received.is_none() && plan.weights.layout(part.weight).shard.expert.is_some()
            }),
            _ => false,
        })
    });
    for group in [Group::Expert, Group::ExpertShard, Group::ExpertReplica, Group::ExpertRows] {
        let has = move |program: &StepProgram, plan: &StepPlan| {
            let mut exchanges = program.calls().iter().filter_map(|call| call.collective);
            plan.weights.mesh.size(group) > 1 && exchanges.any(|one| one.group == group)
        };
        all.push(row(&format!("a collective among the {group} group"), 2, has));
    }
    let dispatches = |program: &StepProgram, _: &StepPlan| {
        let mut exchanges = program.calls().iter().filter_map(|call| call.collective);
        exchanges.any(|one| one.group == Group::Expert && one.counts.is_some_and(|counts| !counts.known))
    };
    all.push(row("a dispatch to own experts", 2, dispatches));
    all
}

/// A row of plans with experts, spread over `ep` ranks at least.
fn row(name: &str, ep: u32, has: impl Fn(&StepProgram, &StepPlan) -> bool + 'static) -> Feature {
    let is_of_experts =
        move |plan: &StepPlan| plan.weights.mesh.expert() >= ep && experts(plan).next().is_some();
    (name.into(), Box::new(move |sample, plan| is_of_experts(plan) && has(&sample.program, plan)))
}

fn experts(plan: &StepPlan) -> impl Iterator<Item = &WeightLayout> {
    plan.weights.layouts.iter().filter(|layout| layout.shard.expert.is_some())
}

fn copies_of_experts(plan: &StepPlan) -> u32 {
    plan.weights.mesh.size(Group::ExpertReplica)
}
