//! PL-2 and PL-4 where optimizer state is sharded over the replicas: shards are published before they are gathered,
//! and gradients are summed over the replicas at the last level.

use warpweft_base::id::SlotId;
use warpweft_format::Orientation;
use warpweft_plan::layout::{Content, StateLayout, Weights};
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{
    AllGather, AllReduce, Assemble, ExchangeGradient, Op, Reduction, SumGradient, SumTarget,
};
use warpweft_plan::plan::{PlanError, ResidentLayout, StepPlan, VerifyError, verify};
use warpweft_plan::policy::{OptimizerShard, Reduce};

use super::edit::{
    gathered, position, recount, refused, relocate, remove, repeat, shard, slot, summed, weight,
};
use super::programs::{accumulating_program, policy};

fn weights_on(program: &warpweft_plan::model::StepProgram, mesh: Mesh) -> Weights {
    let state = StateLayout { shard: OptimizerShard::Replicas, ..StateLayout::default() };
    Weights::new(program.model().weights(), mesh).with_state(state)
}

fn weights(program: &warpweft_plan::model::StepProgram) -> Weights {
    weights_on(program, Mesh::hybrid(4, 2).unwrap())
}

/// Two micro-batches on 2 shards × 2 replicas.
fn training() -> StepPlan {
    training_on(Mesh::hybrid(4, 2).unwrap())
}

/// The same on 2 shards × 4 replicas, in two optimizer instances.
fn in_instances() -> StepPlan {
    training_on(Mesh::hybrid(8, 4).and_then(|mesh| mesh.with_instances(2)).unwrap())
}

fn training_on(mesh: Mesh) -> StepPlan {
    let program = accumulating_program(2);
    let weights = weights_on(&program, mesh);
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    StepPlan::within(&program, &weights, &resident, &policy()).unwrap()
}

fn published(plan: &StepPlan, name: &str) -> SlotId {
    slot(plan, Content::Published(weight(plan, name), Orientation::Rowwise))
}

/// What publishes, and what puts the rank's own slice beside the others'.
fn publishing(plan: &StepPlan, to: SlotId) -> [usize; 2] {
    let gathers = |op: &Op| matches!(op, Op::AllGather(AllGather { parts, .. }) if parts.iter().any(|part| part.to == to));
    let assembles =
        |op: &Op| matches!(op, Op::Assemble(Assemble { parts }) if parts.iter().any(|part| part.to == to));
    [position(plan, 0, gathers), position(plan, 0, assembles)]
}

/// The first gather that takes what lies in `from`.
fn gather(plan: &StepPlan, from: SlotId) -> usize {
    position(
        plan,
        0,
        |op| matches!(op, Op::AllGather(AllGather { parts, .. }) if parts.iter().any(|part| part.from == from)),
    )
}

/// A sum over the replicas that goes into a main grad.
fn last_sum(plan: &StepPlan) -> usize {
    position(plan, 0, |op| matches!(op, Op::SumGradient(SumGradient { group: Group::Replicate, .. })))
}

/// A sum of slices over the optimizer instances.
fn sum_over_instances(plan: &StepPlan) -> usize {
    position(plan, 0, |op| matches!(op, Op::AllReduce(op) if op.group == Group::Instances))
}

/// The same plan, which publishes a shard over another group.
fn published_over(mut plan: StepPlan, other: Group) -> StepPlan {
    let to = published(&plan, "embedding");
    let [publishes, _] = publishing(&plan, to);
    let Op::AllGather(AllGather { group, .. }) = &mut plan.tasks[publishes].op else { unreachable!() };
    *group = other;
    plan
}

#[test]
fn every_shard_is_published_once_and_every_gradient_summed_over_the_replicas() {
    let plan = training();
    verify(&plan).unwrap();
    let count = |wanted: fn(&Op) -> bool| plan.tasks.iter().filter(|task| wanted(&task.op)).count();
    let published = |slot: &&warpweft_plan::layout::Slot| matches!(slot.content, Content::Published(..));
    assert_eq!(plan.arena.slots.iter().filter(published).count(), 3);
    let publishes = |op: &Op| matches!(op, Op::AllGather(AllGather { group: Group::Replicate, .. }));
    assert!((1..=3).contains(&count(publishes)));
    let exchanges =
        |op: &Op| matches!(op, Op::ExchangeGradient(ExchangeGradient { group: Group::Replicate, .. }));
    assert_eq!(
        count(exchanges),
        count(|op| matches!(op, Op::ExchangeGradient(op) if op.group == Group::Shard))
    );
    assert_eq!(count(|op| matches!(op, Op::AllReduce(op) if op.group == Group::Replicate)), 0);
}

/// Slices are those of the replicas of an instance, and what these sum is summed over the instances.
#[test]
fn every_optimizer_instance_publishes_its_slices_and_instances_sum_them() {
    let plan = in_instances();
    verify(&plan).unwrap();
    let over = |wanted: Group| {
        let is_it = |op: &Op| match op {
            Op::AllGather(AllGather { group, .. }) | Op::ExchangeGradient(ExchangeGradient { group, .. }) => {
                *group == wanted
            }
            Op::AllReduce(AllReduce { group, .. }) => *group == wanted,
            _ => false,
        };
        plan.tasks.iter().filter(|task| is_it(&task.op)).count()
    };
    let sums = plan
        .tasks
        .iter()
        .filter(|task| matches!(&task.op, Op::SumGradient(op) if op.group == Group::ReplicateInInstance));
    assert_eq!(over(Group::Instances), sums.count(), "each sum is followed by one over the instances");
    assert!(
        over(Group::ReplicateInInstance) > over(Group::Instances),
        "what is published, and what is exchanged"
    );
    assert_eq!(over(Group::Replicate), 0);
}

/// PL-4. Each instance would go on with gradients of its own.
#[test]
fn a_main_grad_of_what_one_optimizer_instance_summed_is_refused() {
    let mut plan = in_instances();
    let last =
        position(&plan, 0, |op| matches!(op, Op::SumGradient(op) if op.group == Group::ReplicateInInstance));
    summed(&mut plan, last)[0].target = SumTarget::First;
    refused(
        &plan,
        &[
            "PL-4",
            "summed over the ranks of one optimizer instance",
            "sum them over the optimizer instances first",
        ],
    );
    let mut plan = in_instances();
    let sum = sum_over_instances(&plan);
    remove(&mut plan, sum);
    refused(&plan, &["PL-4", "needs a reduced gradient of `embedding`", "holds nothing"]);
}

/// PL-4. Replicas of an instance have slices of other rows.
#[test]
fn slices_that_are_summed_over_the_replicas_of_an_instance_again_are_refused() {
    for wrong in [Group::ReplicateInInstance, Group::Replicate] {
        let mut plan = in_instances();
        let sum = sum_over_instances(&plan);
        let Op::AllReduce(AllReduce { group, .. }) = &mut plan.tasks[sum].op else { unreachable!() };
        *group = wrong;
        recount(&mut plan);
        refused(
            &plan,
            &["PL-4", "needs the other optimizer instances to sum slices", "over the instances group"],
        );
    }
}

/// PL-4
#[test]
fn slices_that_are_summed_over_the_instances_twice_are_refused() {
    let mut plan = in_instances();
    let sum = sum_over_instances(&plan);
    let Op::AllReduce(AllReduce { pairs, .. }) = plan.tasks[sum].op.clone() else { unreachable!() };
    repeat(&mut plan, sum);
    let Op::AllReduce(AllReduce { pairs: again, .. }) = &mut plan.tasks[sum + 1].op else { unreachable!() };
    again[0] = (pairs[0].1, pairs[0].0);
    refused(
        &plan,
        &[
            "PL-4",
            "needs slices of gradients that were not summed over all replicas",
            "once over the instances",
        ],
    );
}

/// PL-2. Of every slice there would be one for each instance.
#[test]
fn slices_that_are_gathered_over_all_instances_are_refused() {
    let plan = published_over(in_instances(), Group::Replicate);
    refused(
        &plan,
        &["brings the replicate group together", "whose slices the replicate_in_instance group has"],
    );
}

/// PL-2. The slot has what another tenant left.
#[test]
fn a_gather_of_a_shard_that_was_not_published_is_refused() {
    let mut plan = training();
    let to = published(&plan, "embedding");
    let [publishes, assembles] = publishing(&plan, to);
    remove(&mut plan, assembles);
    remove(&mut plan, publishes);
    refused(&plan, &["PL-2", "needs the published rowwise shard of `embedding`", "publish the shard first"]);
}

/// PL-2. Of the rank's own slice there would be anything.
#[test]
fn a_published_shard_without_the_own_slice_is_refused() {
    let mut plan = training();
    let to = published(&plan, "embedding");
    let [_, assembles] = publishing(&plan, to);
    remove(&mut plan, assembles);
    refused(&plan, &["PL-2", "needs the published rowwise shard", "not yet assembled with this rank's own"]);
}

/// PL-2. Slices of the step before are stale: they are gone by the time they are published again.
#[test]
fn a_shard_that_is_published_after_its_gather_is_refused() {
    let mut plan = training();
    let to = published(&plan, "block.1");
    let [publishes, _] = publishing(&plan, to);
    let after = gather(&plan, to);
    relocate(&mut plan, publishes, after);
    refused(&plan, &["PL-2", "needs the other replicas' slices of the rowwise shard of `block.1`"]);
}

/// PL-2
#[test]
fn a_gather_that_takes_the_own_slice_for_the_shard_is_refused() {
    let mut plan = training();
    let (to, own) = (published(&plan, "embedding"), shard(&plan, "embedding"));
    let task = gather(&plan, to);
    gathered(&mut plan, task).from = own;
    refused(&plan, &["PL-2", "needs the published rowwise shard of `embedding`"]);
}

/// PL-2. The ranks of a replica have slices of other shards.
#[test]
fn slices_that_are_gathered_in_a_replica_are_refused() {
    let plan = published_over(training(), Group::Shard);
    refused(&plan, &["brings the shard group together", "whose slices the replicate group has"]);
}

/// PL-4. Each replica would update its slice by gradients of its own.
#[test]
fn a_main_grad_of_what_one_replica_summed_is_refused() {
    let mut plan = training();
    let first = position(&plan, 0, |op| matches!(op, Op::SumGradient(op) if op.group == Group::Shard));
    summed(&mut plan, first)[0].target = SumTarget::First;
    let error = refused(
        &plan,
        &["PL-4", "summed over the ranks of one block of", "sum them at the next level first"],
    );
    assert!(matches!(error, VerifyError::Accumulation { .. }));
}

/// PL-4
#[test]
fn a_sum_over_the_replicas_that_is_left_out_or_made_twice_is_refused() {
    let mut plan = training();
    let last = last_sum(&plan);
    remove(&mut plan, last);
    refused(&plan, &["PL-4", "needs the sum of `embedding` that an earlier contribution of this step began"]);
    let mut plan = training();
    let last = last_sum(&plan);
    repeat(&mut plan, last);
    refused(&plan, &["PL-4", "begins the sum of"]);
}

/// PL-9. A slice that is updated twice is of no version.
#[test]
fn an_update_that_is_made_twice_is_refused() {
    let mut plan = training();
    let update = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    repeat(&mut plan, update);
    refused(
        &plan,
        &[
            "PL-9",
            "needs the master of `embedding` at version 0",
            "holds the master of `embedding` at version 1",
        ],
    );
}

/// PL-9. The largest value may be in a slice of another replica.
#[test]
fn maxima_over_one_replica_are_refused() {
    let mut plan = training();
    let maxima = position(&plan, 0, |op| matches!(op, Op::AllReduce(op) if op.reduction == Reduction::Max));
    let Op::AllReduce(AllReduce { group, .. }) = &mut plan.tasks[maxima].op else { unreachable!() };
    *group = Group::Shard;
    recount(&mut plan);
    refused(&plan, &["takes maxima over the shard group", "take them over all ranks"]);
}

#[test]
fn sums_of_nccl_and_whole_matrices_are_refused_with_what_to_do() {
    let program = accumulating_program(1);
    let weights = weights(&program);
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    let policy = warpweft_plan::plan::Policy { reduce: Reduce::Nccl, ..policy() };
    let error = StepPlan::within(&program, &weights, &resident, &policy).unwrap_err();
    assert!(error.to_string().contains("take reduce = \"ordered\""), "{error}");
    let mut whole = weights.clone();
    whole.state.custom_states = Some(1);
    whole.layouts[1].parameters.whole_matrix = true;
    let error = ResidentLayout::new(&whole, &[&program]).unwrap_err();
    assert!(matches!(&error, PlanError::Slices { weight } if weight == "block.0"), "{error}");
}
