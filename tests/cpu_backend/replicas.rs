//! Meshes of several replicas on the CPU alone: sums by a collective, and the errors of a wrong mesh and of a lost
//! rank.

use std::sync::Arc;

use warpweft_backend::BackendError;
use warpweft_backend::cpu::{CpuOptions, CpuWorld};
use warpweft_base::id::{CallId, RankId};
use warpweft_format::Format;
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{AllReduce, Op, Reduction};

use crate::bodies::harness::{LINK, Plan, ROWWISE, Rank, W, noise, run, sharded};

/// 2 shards × 3 replicas.
fn mesh() -> Mesh {
    Mesh::hybrid(6, 3).unwrap()
}

#[test]
fn a_gradient_that_a_collective_sums_is_summed_over_a_replica_and_then_over_the_replicas() {
    let mut plan = Plan::over(mesh(), &[sharded(4, 5, Format::F32)]);
    let call = CallId::new(0);
    let from = plan.transient("gradient", Content::Gradient(W, call));
    let reduced = plan.transient("reduced", Content::ReducedGradient(W, call));
    let summed = plan.transient("summed", Content::SummedGradient(W, call));
    plan.op(LINK, Op::reduce_scatter(W, from, reduced));
    let (reduction, group) = (Reduction::Sum, Group::Replicate);
    plan.op(LINK, Op::AllReduce(AllReduce { reduction, group, pairs: vec![(reduced, summed)] }));
    let sums = run(plan, move |rank| {
        rank.put(from, &noise(20, rank.number() as u32));
        rank.step().unwrap();
        rank.get::<f32>(summed)
    });
    let all: Vec<Vec<f32>> = (0..6).map(|rank| noise(20, rank)).collect();
    for (rank, found) in sums.iter().enumerate() {
        let rows = rank % 2 * 10..rank % 2 * 10 + 10;
        let of_replica = |replica: usize, at: usize| all[2 * replica][at] + all[2 * replica + 1][at];
        let expected: Vec<f32> =
            rows.map(|at| of_replica(0, at) + of_replica(1, at) + of_replica(2, at)).collect();
        assert_eq!(*found, expected, "rank {rank}");
    }
}

/// As many ranks, but other groups: sums would be of other ranks than the plan means, and no op could tell.
#[test]
fn a_plan_of_another_mesh_than_the_world_s_is_not_bound() {
    let (flat, hybrid) = (Mesh::new(4).unwrap(), Mesh::hybrid(4, 2).unwrap());
    for (planned, world) in [(flat, hybrid), (hybrid, flat), (flat, Mesh::new(5).unwrap())] {
        let mut plan = Plan::over(planned, &[sharded(4, 5, Format::F32)]);
        let from = plan.resident("shard", Content::Shard(W, ROWWISE));
        let to = plan.transient("gathered", Content::Gathered(W, ROWWISE));
        plan.op(LINK, Op::gather(W, ROWWISE, from, to));
        let ranks = CpuWorld::new(world, CpuOptions::default()).unwrap();
        let backend = ranks.backend(RankId::new(3)).unwrap();
        let Err(error) = Rank::start(backend, Arc::new(plan), None) else {
            panic!("bound a plan for {planned} in a world of {world}");
        };
        let told = error.to_string();
        assert!(told.contains(&format!("the plan is for {planned}, but the world has {world}")), "{told}");
        let BackendError::Mesh { rank, plan, world: of } = error else { panic!("{error}") };
        assert_eq!((rank, plan, of), (RankId::new(3), planned, world));
    }
}

/// A rank that leaves ends the waits of those that need it, in whatever group, and of nobody before they do.
#[test]
fn a_rank_that_is_gone_is_named_by_its_twins_in_other_replicas() {
    let mut plan = Plan::over(mesh(), &[]);
    let (_, from) = plan.buffer("from", 1, Residency::Resident);
    let (_, to) = plan.buffer("to", 1, Residency::Resident);
    let (reduction, group) = (Reduction::Sum, Group::Replicate);
    plan.op(LINK, Op::AllReduce(AllReduce { reduction, group, pairs: vec![(from, to)] }));
    let outcomes = run(plan, move |rank| (rank.number() != 5).then(|| rank.step()));
    // Rank 5 holds shard 1; ranks 1 and 3 do too.
    for number in [1, 3] {
        let Some(Err(BackendError::Poisoned { reason })) = &outcomes[number] else {
            panic!("rank {number}: {:?}", outcomes[number]);
        };
        assert!(reason.contains("rank 5 has gone"), "{reason}");
    }
}
