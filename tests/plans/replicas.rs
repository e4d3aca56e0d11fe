//! Plans for a mesh of several replicas.

use std::collections::BTreeSet;

use warpweft::config::ReduceEvery;
use warpweft::format::Format;
use warpweft::id::SlotId;
use warpweft::model::{Group, Mesh};
use warpweft::op::{Op, Reduction};
use warpweft::plan::{Policy, StepPlan};

use crate::{chain, policy};

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
            Op::AllGather { .. } | Op::ReduceScatter { .. } => (rows, Group::Shard),
            Op::AllReduce { group: Group::Replicate, .. } => (2 * rows, Group::Replicate),
            Op::AllReduce { group: Group::World, .. } => (5 * 7 * 4, Group::World),
            Op::GatherRecords { .. } => (5 * 16, Group::World),
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

/// PL-4. A group's gradients are summed over the replicas as one collective too, and each once.
#[test]
fn every_reduction_is_followed_by_its_sum_over_the_replicas() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    for reduce_every in [ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step] {
        let policy = Policy { reduce_every, ..policy(2) };
        let plan = StepPlan::build(&chain(4, Format::NVFP4_2D), &policy, mesh).unwrap();
        let mut summed = 0;
        for pair in plan.tasks.windows(2) {
            let Op::ReduceScatter { parts, .. } = &pair[0].op else { continue };
            let Op::AllReduce { reduction: Reduction::Sum, group: Group::Replicate, pairs } = &pair[1].op
            else {
                panic!("a {} follows a reduction", pair[1].op.name());
            };
            let reduced: Vec<SlotId> = parts.iter().map(|part| part.to).collect();
            assert_eq!(pairs.iter().map(|(from, _)| *from).collect::<Vec<_>>(), reduced);
            summed += 1;
        }
        assert!(summed >= 4, "{summed}");
    }
}
