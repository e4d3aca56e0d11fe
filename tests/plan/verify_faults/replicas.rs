//! PL-4 on a mesh of several replicas: a contribution passes the sum over a replica's ranks and the sum over
//! replicas, each once.

use warpweft_base::id::SlotId;
use warpweft_plan::model::{Group, Mesh, Placement};
use warpweft_plan::op::{Accumulate, AllReduce, Op, ReduceScatter, Reduction, SumGradient};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{is_reduction, position, recount, refused, relocate, remove, repeat, spread, summed};
use super::programs::{accumulating_program, by_collectives, policy, replicated_training};

fn is_sum(op: &Op, over: Group) -> bool {
    matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Sum, group, .. }) if *group == over)
}

/// The first sum over the replicas.
fn sum(plan: &StepPlan) -> usize {
    position(plan, 0, |op| is_sum(op, Group::Replicate))
}

fn pairs(plan: &mut StepPlan, task: usize) -> &mut Vec<(SlotId, SlotId)> {
    match &mut plan.tasks[task].op {
        Op::AllReduce(AllReduce { pairs, .. }) => pairs,
        other => panic!("a {} has no pairs", other.name()),
    }
}

fn set_group(plan: &mut StepPlan, task: usize, to: Group) {
    match &mut plan.tasks[task].op {
        Op::AllReduce(AllReduce { group, .. }) => *group = to,
        other => panic!("a {} names no group", other.name()),
    }
}

/// The accumulation of the rows in `slot`.
fn accumulation(plan: &StepPlan, slot: SlotId) -> usize {
    position(plan, 0, |op| matches!(op, Op::Accumulate(Accumulate { from, .. }) if *from == slot))
}

#[test]
fn every_reduced_gradient_is_summed_over_the_replicas() {
    let plan = replicated_training();
    verify(&plan).unwrap();
    let count = |wanted: fn(&Op) -> bool| plan.tasks.iter().filter(|task| wanted(&task.op)).count();
    let reductions = count(is_reduction);
    assert!(reductions > 4);
    assert_eq!(count(|op| is_sum(op, Group::Replicate)), reductions);
    assert_eq!(count(|op| is_sum(op, Group::World)), 1, "gradients of replicated weights");
}

/// PL-4
#[test]
fn a_dropped_sum_over_the_replicas_leaves_nothing_to_accumulate() {
    let mut plan = replicated_training();
    let lost = sum(&plan);
    remove(&mut plan, lost);
    let error =
        refused(&plan, &["PL-4", "(accumulate of embedding) needs a reduced gradient of `embedding`"]);
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-4. Each replica would go on with gradients of its own, and no two would ever agree again.
#[test]
fn accumulating_what_only_one_replica_reduced_is_refused() {
    let mut plan = replicated_training();
    spread(&mut plan);
    let over_replicas = sum(&plan);
    let (of_replica, of_all) = pairs(&mut plan, over_replicas)[0];
    let wrong = accumulation(&plan, of_all);
    let Op::Accumulate(Accumulate { from, .. }) = &mut plan.tasks[wrong].op else { unreachable!() };
    *from = of_replica;
    refused(
        &plan,
        &[
            "PL-4",
            "needs a gradient summed over all replicas of `embedding`",
            "each replica goes on with gradients of its own",
        ],
    );
}

/// PL-4. A sum of what was summed counts every contribution once for each replica.
#[test]
fn a_gradient_summed_over_the_replicas_twice_is_refused() {
    let mut plan = replicated_training();
    let over_replicas = sum(&plan);
    repeat(&mut plan, over_replicas);
    let (from, to) = pairs(&mut plan, over_replicas + 1)[0];
    pairs(&mut plan, over_replicas + 1)[0] = (to, from);
    refused(
        &plan,
        &["PL-4", "were not summed over the replicas before", "it counts as often as there are replicas"],
    );
}

/// PL-4
#[test]
fn a_sum_over_the_replicas_before_the_reduce_scatter_is_refused() {
    let mut plan = replicated_training();
    let over_replicas = sum(&plan);
    let (of_replica, _) = pairs(&mut plan, over_replicas)[0];
    let reduction = position(
        &plan,
        0,
        |op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts.iter().any(|part| part.into == of_replica)),
    );
    let mut early = plan.clone();
    relocate(&mut early, over_replicas, reduction);
    refused(&early, &["PL-4", "needs reduced gradient rows of a sharded weight", "holds nothing"]);
    spread(&mut plan);
    let gradient = summed(&mut plan, reduction)[0].own;
    pairs(&mut plan, over_replicas)[0].0 = gradient;
    refused(
        &plan,
        &[
            "PL-4",
            "exchange and sum the gradient, or reduce-scatter it, before it is summed over the replicas",
        ],
    );
}

/// PL-4. Ranks of one replica hold different rows, so a sum over them, or over all ranks, mixes rows.
#[test]
fn a_sum_over_the_wrong_group_is_refused() {
    for wrong in [Group::Shard, Group::World] {
        let mut plan = replicated_training();
        let over_replicas = sum(&plan);
        set_group(&mut plan, over_replicas, wrong);
        refused(
            &plan,
            &["PL-4", "since ranks of one replica hold different rows", "over the replicate group"],
        );
    }
    for wrong in [Group::Shard, Group::Replicate] {
        let mut plan = replicated_training();
        let over_all = position(&plan, 0, |op| is_sum(op, Group::World));
        set_group(&mut plan, over_all, wrong);
        refused(&plan, &["PL-4", "all ranks to sum the gradient of a replicated weight with"]);
    }
}

/// PL-4. With one replica there are no others: a sharded weight's gradient is summed by its
/// reduce-scatter, a replicated one's after its accumulation.
#[test]
fn a_wrong_sum_of_one_replica_is_told_without_replicas() {
    let training = by_collectives::nvfp4_training();
    let over_all = position(&training, 0, |op| is_sum(op, Group::World));
    let slot = |wanted: &dyn Fn(&Op) -> Option<SlotId>| {
        training.tasks[..over_all].iter().find_map(|task| wanted(&task.op)).unwrap()
    };
    let replicated = slot(&|op| match op {
        Op::Accumulate(Accumulate { weight, from, .. })
            if training.weights.layout(*weight).placement == Placement::Replicated =>
        {
            Some(*from)
        }
        _ => None,
    });
    let full = slot(&|op| match op {
        Op::ReduceScatter(ReduceScatter { parts, .. }) => Some(parts[0].from),
        _ => None,
    });
    let reduced = slot(&|op| match op {
        Op::ReduceScatter(ReduceScatter { parts, .. }) => Some(parts[0].to),
        _ => None,
    });
    for (from, remedy) in [
        (replicated, "accumulate the weight's gradients before the all-reduce"),
        (full, "exchange and sum the gradient of a sharded weight, or reduce-scatter it: with one replica"),
        (reduced, "accumulate reduced rows as they are: with one replica"),
    ] {
        let mut plan = training.clone();
        // Nothing is overwritten before the sum reads it.
        spread(&mut plan);
        pairs(&mut plan, over_all)[0].0 = from;
        let error =
            refused(&plan, &["PL-4", "needs this rank's gradient sum of a replicated weight", remedy]);
        assert!(!error.to_string().contains("the replicas"), "{error}");
    }
}

/// PL-4. The sum is there, and its bytes are written again; it was to be added to one begun before.
#[test]
fn a_sum_over_the_replicas_that_is_overwritten_is_told_where_it_was() {
    let mut plan = replicated_training();
    spread(&mut plan);
    let sums: Vec<SlotId> = plan
        .tasks
        .iter()
        .filter(|task| is_sum(&task.op, Group::Replicate))
        .flat_map(|task| {
            let Op::AllReduce(AllReduce { pairs, .. }) = &task.op else { unreachable!() };
            pairs.iter().map(|(_, to)| *to)
        })
        .collect();
    let is_added = |slot: SlotId| {
        matches!(plan.tasks[accumulation(&plan, slot)].op, Op::Accumulate(Accumulate { first: false, .. }))
    };
    let bytes = |slot: SlotId| plan.arena.region(slot).bytes;
    let mut after =
        sums.iter().enumerate().filter(|(_, slot)| is_added(**slot)).filter_map(|(number, slot)| {
            Some((*slot, *sums[number + 1..].iter().find(|later| bytes(**later) == bytes(*slot))?))
        });
    let (lost, later) = after.next().unwrap();
    plan.arena.slots[lost.index()].region = plan.arena.region(later);
    let accumulation = accumulation(&plan, lost);
    remove(&mut plan, accumulation);
    recount(&mut plan);
    let error = refused(
        &plan,
        &["PL-4", "it was summed over the replicas into slot", "which holds nothing any more"],
    );
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-9. Ranks that hold the same rows know no other amax.
#[test]
fn a_maximum_over_the_replicas_is_refused() {
    for wrong in [Group::Replicate, Group::World] {
        let mut plan = replicated_training();
        let maxima =
            position(&plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, .. })));
        set_group(&mut plan, maxima, wrong);
        refused(&plan, &[&format!("takes maxima over the {wrong} group"), "over the ranks of a replica"]);
    }
}

/// PL-4. With one shard a replica is a rank: its reduction brings nobody together, and the sum over replicas
/// is all there is.
#[test]
fn with_one_shard_the_sum_over_the_replicas_is_still_asked_for() {
    let mesh = Mesh::hybrid(2, 2).unwrap();
    let mut plan = StepPlan::build(&accumulating_program(1), &policy(), mesh).unwrap();
    let lost = sum(&plan);
    // The world is the replicate group by another name.
    set_group(&mut plan, lost, Group::World);
    verify(&plan).unwrap();
    remove(&mut plan, lost);
    refused(&plan, &["PL-4"]);
}
