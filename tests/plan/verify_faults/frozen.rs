//! PL-4, PL-9: a step leaves frozen weights as they are, and every other one goes a version on.

use warpweft_base::id::WeightId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Form, Model, Phase, StepProgram};
use warpweft_plan::op::{Adam, Op, PartialCast};
use warpweft_plan::plan::{ResidentLayout, StepPlan};

use super::edit::{position, refused, slot, weight};
use super::programs::plan;

/// Two weights of one format on two ranks, of which `base` is frozen.
fn training() -> StepPlan {
    let mut model = Model::builder();
    let base = model.sharded("base", 32, 32, Format::NVFP4_2D).unwrap();
    let adapter = model.sharded("adapter", 32, 32, Format::NVFP4_2D).unwrap();
    model.freeze(base).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let call = program.call("fit", Phase::Backward).uses(base, Orientation::Rowwise, Form::Dense);
    call.uses(adapter, Orientation::Rowwise, Form::Dense).gradient(adapter).add().unwrap();
    plan(&program.build_training().unwrap(), 2)
}

/// As if the weight, which is alone in its bucket, had been declared so.
fn declare(plan: &mut StepPlan, weight: WeightId, frozen: bool) {
    let layout = &mut plan.weights.layouts[weight.index()];
    layout.frozen = frozen;
    plan.weights.buckets[layout.bucket.index()].frozen = frozen;
}

fn adam(plan: &StepPlan) -> usize {
    position(plan, 0, |op| matches!(op, Op::Adam(_)))
}

/// FW-1. It has neither master, moments nor main grad, and only the other one's bucket is quantized.
#[test]
fn a_step_with_a_frozen_weight_is_valid_and_does_nothing_to_it() {
    let plan = training();
    let base = weight(&plan, "base");
    let writes = |task: &warpweft_plan::plan::Task| {
        let slots = task.op.accesses().into_iter().filter(|(_, access)| access.writes());
        slots.map(|(slot, _)| plan.arena.slot(slot).content).collect::<Vec<_>>()
    };
    let written: Vec<Content> = plan.tasks.iter().flat_map(writes).collect();
    let shard = Content::Shard(base, Orientation::Rowwise);
    slot(&plan, shard);
    assert!(!written.contains(&shard));
    for content in [
        Content::Master(base),
        Content::first_moment(base),
        Content::second_moment(base),
        Content::MainGrad(base),
    ] {
        assert!(plan.arena.find(content).is_none(), "{content:?}");
    }
}

/// PL-9
#[test]
fn a_frozen_weight_that_adam_updates_is_refused() {
    let mut plan = training();
    let (base, adam) = (weight(&plan, "base"), adam(&plan));
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    states[0].weight = base;
    refused(&plan, &["updates `base`, which is frozen"]);
}

/// PL-4: its gradient would end nowhere.
#[test]
fn a_call_that_writes_the_gradient_of_a_frozen_weight_is_refused() {
    let mut plan = training();
    let adapter = weight(&plan, "adapter");
    declare(&mut plan, adapter, true);
    refused(&plan, &["PL-4", "fit writes the gradient of `adapter`, which is frozen"]);
}

/// PL-4: nobody may call a weight trained that no optimizer sees.
#[test]
fn a_weight_that_trains_and_is_treated_as_frozen_is_refused() {
    let mut plan = training();
    let base = weight(&plan, "base");
    declare(&mut plan, base, false);
    refused(&plan, &["counts the main grad of `base` 0 times in the norm, and it has 1"]);
}

/// PL-4: one half of the planner would train it and the other would not.
#[test]
fn a_weight_that_is_frozen_while_its_bucket_is_not_is_refused() {
    let mut plan = training();
    let base = weight(&plan, "base");
    plan.weights.layouts[base.index()].frozen = false;
    refused(&plan, &["a weight that is trained", "is frozen"]);
}

/// FW-1, PL-9: its planes were set, and nobody has a master to make others of.
#[test]
fn a_cast_into_the_planes_of_a_frozen_weight_is_refused() {
    let mut plan = training();
    let base = weight(&plan, "base");
    let planes = slot(&plan, Content::Shard(base, Orientation::Rowwise));
    let cast = position(&plan, 0, |op| matches!(op, Op::PartialCast(_)));
    let Op::PartialCast(PartialCast { shards, .. }) = &mut plan.tasks[cast].op else { unreachable!() };
    (shards[0].weight, shards[0].slot) = (base, planes);
    refused(&plan, &["the rowwise shard of `base`"]);
}

/// FW-1: a session sets them once, for steps and prologues alike.
#[test]
fn no_plan_makes_the_planes_of_a_frozen_weight_and_a_prologue_neither() {
    let plan = training();
    let base = weight(&plan, "base");
    let prologue = {
        let resident = ResidentLayout::new(&plan.weights, &[]).unwrap();
        StepPlan::prologue(&plan.weights, &resident, &plan.policy).unwrap()
    };
    let of_base = |task: &warpweft_plan::plan::Task| {
        let slots = task.op.accesses().into_iter();
        let planes = Content::Shard(base, Orientation::Rowwise);
        slots.map(|(slot, _)| prologue.arena.slot(slot).content).any(|content| content == planes)
    };
    assert!(prologue.tasks.iter().all(|task| !of_base(task)));
}
