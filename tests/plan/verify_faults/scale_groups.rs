//! PL-9 for scale groups: a scale is made of the amaxes of all of its weights, of all ranks of a replica, of
//! these masters.

use warpweft_base::id::{BucketId, WeightId};
use warpweft_format::{AmaxChoice, ElementType, Format, Orientation};
use warpweft_plan::layout::{Content, Delayed, StateLayout, Weights};
use warpweft_plan::model::{Form, Group, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{AllReduce, FusedScale, Op, PartialAmax, Reduction};
use warpweft_plan::plan::{ResidentLayout, StepPlan, verify};

use super::edit::{position, refused, relocate, serialize, slot, spread};
use super::programs::policy;

const BUCKET: BucketId = BucketId::new(0);

/// Query and key share a scale; the output's weight, declared between them, has its own.
fn program(format: Format) -> StepProgram {
    let mut model = Model::builder();
    let [query, output, key] =
        ["query", "output", "key"].map(|name| model.sharded(name, 96, 64, format).unwrap());
    model.scale_group("query and key", &[query, key]).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut call = program.call("all", Phase::Backward).writes(loss);
    for weight in [query, output, key] {
        call = call.uses(weight, Orientation::Rowwise, Form::Planes).gradient(weight);
    }
    call.add().unwrap();
    program.build_training().unwrap()
}

/// Prologue and step on two replicas of two ranks.
fn plans(format: Format, state: StateLayout) -> [StepPlan; 2] {
    let program = program(format);
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let weights = Weights::new(program.model().weights(), mesh).with_state(state);
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    let prologue = StepPlan::prologue(&weights, &resident, &policy()).unwrap();
    [prologue, StepPlan::within(&program, &weights, &resident, &policy()).unwrap()]
}

/// A step whose amaxes are taken after a custom optimizer, by a task of their own.
fn step() -> StepPlan {
    let [_, step] = plans(Format::NVFP4_2D, StateLayout { custom_states: Some(1), ..StateLayout::default() });
    step
}

fn amax(plan: &mut StepPlan) -> (usize, &mut PartialAmax) {
    let task = position(plan, 0, |op| matches!(op, Op::PartialAmax(_)));
    let Op::PartialAmax(amax) = &mut plan.tasks[task].op else { unreachable!() };
    (task, amax)
}

fn is_maximum(op: &Op) -> bool {
    matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, .. }))
}

#[test]
fn plans_with_scale_groups_are_accepted() {
    let delayed = Delayed { history: 3, choice: AmaxChoice::Latest };
    for (format, state) in [
        (Format::NVFP4_2D, StateLayout::default()),
        (Format::NVFP4_2D, StateLayout { custom_states: Some(1), ..StateLayout::default() }),
        (Format::FP8_TENSOR_E4M3, StateLayout::default()),
        (Format::FP8_TENSOR_E4M3, StateLayout { delayed: Some(delayed), ..StateLayout::default() }),
    ] {
        for plan in plans(format, state) {
            verify(&plan).unwrap();
        }
    }
}

/// PL-9. A part left out, and parts in an order that is not the bucket's.
#[test]
fn amaxes_of_a_scale_group_without_one_of_its_weights_are_refused() {
    let [prologue, _] = plans(Format::NVFP4_2D, StateLayout::default());
    for mut plan in [prologue, step()] {
        let mut other = plan.clone();
        amax(&mut plan).1.masters.pop();
        refused(&plan, &["names 2 masters, but bucket 0 has 3 weights"]);
        // In the order of the declaration, which is not that of the amaxes.
        amax(&mut other).1.masters.swap(1, 2);
        refused(&other, &["PL-9", "needs the master of `key`", "holds the master of `output`"]);
    }
}

/// PL-9. A part that is stale: of the masters before the update.
#[test]
fn amaxes_of_a_scale_group_from_before_one_of_its_weights_was_updated_are_refused() {
    let mut plan = step();
    spread(&mut plan);
    let update = position(&plan, 0, |op| matches!(op, Op::Update(_)));
    let (amax, _) = amax(&mut plan);
    relocate(&mut plan, amax, update);
    refused(&plan, &["PL-9", "needs the encode factors of bucket 0 at version 1", "at version 0"]);
}

/// PL-9. What one rank or other replicas have seen is not what this replica's ranks have.
#[test]
fn scales_of_a_scale_group_need_the_maximum_over_the_ranks_of_their_replica() {
    for group in [Group::World, Group::Replicate] {
        let mut plan = step();
        let task = position(&plan, 0, is_maximum);
        let Op::AllReduce(AllReduce { group: over, .. }) = &mut plan.tasks[task].op else { unreachable!() };
        *over = group;
        refused(&plan, &["over the ranks of a replica"]);
    }
    let mut plan = step();
    spread(&mut plan);
    let local = slot(&plan, Content::LocalAmax(BUCKET));
    let scale = position(&plan, 0, |op| matches!(op, Op::FusedScale(_)));
    let Op::FusedScale(FusedScale { tensor_amax, .. }) = &mut plan.tasks[scale].op else { unreachable!() };
    *tensor_amax = local;
    serialize(&mut plan);
    refused(&plan, &["PL-9", "needs the amaxes of bucket 0 over all ranks"]);
    // Before they are reduced.
    let mut plan = step();
    spread(&mut plan);
    let reduce = position(&plan, 0, is_maximum);
    let scale = position(&plan, 0, |op| matches!(op, Op::FusedScale(_)));
    relocate(&mut plan, scale, reduce);
    refused(&plan, &["PL-9", "needs the amaxes of bucket 0 over all ranks"]);
}

/// Whoever makes scales looks for amaxes next to one another.
#[test]
fn a_scale_group_whose_weights_are_apart_in_their_bucket_is_refused() {
    let mut plan = step();
    let [query, output, key] = [0, 1, 2].map(WeightId::new);
    assert_eq!(plan.weights.buckets[0].weights, [query, key, output]);
    assert_eq!([query, key, output].map(|weight| plan.weights.scaled_with(weight)), [0..2, 0..2, 2..3]);
    plan.weights.buckets[0].weights = vec![query, output, key];
    for weight in [query, output, key] {
        plan.weights.layouts[weight.index()].position = weight.index();
    }
    refused(&plan, &["malformed plan", "scale group `query and key`", "their amaxes would be left out"]);
}
