//! Plans for a mesh of several replicas.

use std::collections::BTreeSet;

use warpweft_base::id::SlotId;
use warpweft_format::Format;
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{AllReduce, Op, ReduceScatter, Reduction, SumGradient};
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_plan::policy::{Reduce, ReduceEvery};

use super::{chain, policy};

/// PL-1, PL-4. Gathers and reductions receive from the replica, sums from the twins in others, records from all.
#[test]
fn what_a_collective_receives_follows_from_its_group() {
    let mesh = Mesh::hybrid(6, 3).unwrap();
    let plan = StepPlan::build(&chain(3, Format::F32), &policy(2), mesh).unwrap();
    let again = StepPlan::build(&chain(3, Format::F32), &policy(2), mesh).unwrap();
    assert_eq!((&plan, plan.fingerprint()), (&again, again.fingerprint()));
    let sharded = StepPlan::build(&chain(3, Format::F32), &policy(2), Mesh::new(6).unwrap()).unwrap();
    assert_ne!(plan.fingerprint(), sharded.fingerprint());
    // 64 × 64 weights over two shards.
    let rows = 32 * 64 * 4;
    let mut seen = BTreeSet::new();
    for task in plan.tasks.iter().filter(|task| task.op.is_collective()) {
        let (received, group) = match &task.op {
            Op::AllGather(_) | Op::ExchangeGradient(_) => (rows, Group::Shard),
            Op::AllReduce(AllReduce { group: Group::Replicate, .. }) => (2 * rows, Group::Replicate),
            Op::AllReduce(AllReduce { group: Group::World, .. }) => (5 * 7 * 4, Group::World),
            Op::GatherRecords(_) => (5 * 16, Group::World),
            other => panic!("a {} is in no step of f32 weights", other.name()),
        };
        assert_eq!((task.wire_bytes, task.op.group()), (received, Some(group)), "{}", task.op.name());
        seen.insert(task.op.name());
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    let text = plan.to_string();
    assert!(text.contains("for 6 ranks (2 shards × 3 replicas)") && text.contains(" replicate "), "{text}");
    assert!(!sharded.to_string().contains("group") && sharded.to_string().contains("for 6 ranks, "));
}

/// The rows that each sum over the replicas takes, in T.
fn summed_over_replicas(plan: &StepPlan) -> Vec<Vec<SlotId>> {
    let pairs = plan.tasks.iter().filter_map(|task| match &task.op {
        Op::AllReduce(AllReduce { reduction: Reduction::Sum, group: Group::Replicate, pairs }) => Some(pairs),
        _ => None,
    });
    pairs.map(|pairs| pairs.iter().map(|(from, _)| *from).collect()).collect()
}

/// PL-4. A group's gradients are summed over the replicas as one collective too, and each once: right after
/// the collective that summed them, or in the order in which ranks did.
#[test]
fn every_reduction_is_followed_by_its_sum_over_the_replicas() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    for reduce_every in [ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step] {
        let plan = |reduce| {
            let policy = Policy { reduce_every, reduce, ..policy(2) };
            StepPlan::build(&chain(4, Format::NVFP4_2D), &policy, mesh).unwrap()
        };
        let plans = [plan(Reduce::Nccl), plan(Reduce::Ordered)];
        let reduced = plans.each_ref().map(|plan| -> Vec<Vec<SlotId>> {
            let slots = plan.tasks.iter().filter_map(|task| match &task.op {
                Op::ReduceScatter(ReduceScatter { parts, .. }) => {
                    Some(parts.iter().map(|part| part.to).collect())
                }
                Op::SumGradient(SumGradient { parts, .. }) => {
                    Some(parts.iter().map(|part| part.into).collect())
                }
                _ => None,
            });
            slots.collect()
        });
        for (plan, reduced) in plans.iter().zip(&reduced) {
            assert!(reduced.len() >= 4, "{}", reduced.len());
            assert_eq!(summed_over_replicas(plan), *reduced);
        }
        for pair in plans[0].tasks.windows(2) {
            let after = matches!(pair[1].op, Op::AllReduce(AllReduce { group: Group::Replicate, .. }));
            assert_eq!(matches!(pair[0].op, Op::ReduceScatter(_)), after);
        }
    }
}
