//! Collectives of a mesh of several replicas: who takes part, and in which order values are added. Meshes are the
//! device's.

use warpweft_base::id::{CallId, RankId, WeightId};
use warpweft_format::Format;
use warpweft_plan::layout::{Content, Residency, StateLayout};
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{
    AllGather, AllReduce, Assemble, ExchangeGradient, GatherPart, GatherRecords, NormRecord, Op, ReducePart,
    Reduction, SumGradient, SumPart, SumTarget, WireType,
};
use warpweft_plan::policy::OptimizerShard;

use super::harness::{LINK, Plan, QUANTIZE, ROWWISE, W, noise, run, sharded};
use crate::device::{meshes, most_captured_ranks};

/// Values of which another order of addition makes other bits.
fn values(rank: usize, number: usize, elements: usize) -> Vec<f32> {
    let scale = [1e8, 1.0, -1e8, 3.0, 1e7, -1e7][rank];
    noise(elements, (10 * rank + number) as u32).iter().map(|value| value * scale).collect()
}

/// Gradients that few bytes, and that many copies, carry to the other ranks: by the ranks of a replica, then
/// by the replicas.
fn sums(mesh: Mesh, captured: bool) -> Vec<Vec<Vec<f32>>> {
    let specs = [(12, 5), (96, 130)].map(|(rows, cols)| sharded(rows, cols, Format::F32));
    let mut plan = Plan::over(mesh, &specs);
    let (call, wire) = (CallId::new(0), WireType::F32);
    let (mut given, mut parts, mut sums, mut pairs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for weight in (0..specs.len()).map(WeightId::at) {
        let own = plan.transient("gradient", Content::Gradient(weight, call));
        let reduced = plan.transient("reduced", Content::ReducedGradient(weight, call));
        let summed = plan.transient("summed", Content::SummedGradient(weight, call));
        let received = (mesh.shards() > 1)
            .then(|| plan.transient("landed", Content::ReceivedGradient(weight, call, wire)));
        parts.extend(received.map(|to| ReducePart { weight, from: own, to }));
        sums.push(SumPart { weight, own, received, into: reduced, target: SumTarget::Rows, squares: None });
        given.push(own);
        pairs.push((reduced, summed));
    }
    if mesh.shards() > 1 {
        plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire, group: Group::Shard, parts }));
        plan.fence(LINK, QUANTIZE);
    }
    plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire, group: Group::Shard, parts: sums }));
    plan.fence(QUANTIZE, LINK);
    let (reduction, group) = (Reduction::Sum, Group::Replicate);
    plan.op(LINK, Op::AllReduce(AllReduce { reduction, group, pairs: pairs.clone() }));
    run(plan, move |rank| {
        let put = |rank: &super::harness::Rank<_>| {
            for (number, slot) in given.iter().enumerate() {
                let elements = rank.plan.region(*slot).bytes / 4;
                rank.put(*slot, &values(rank.number(), number, elements));
            }
        };
        put(rank);
        rank.step().unwrap();
        if captured {
            let graph = rank.capture_graph().unwrap();
            for _ in 0..3 {
                for (_, summed) in &pairs {
                    rank.put(*summed, &vec![f32::NAN; rank.plan.region(*summed).bytes / 4]);
                }
                put(rank);
                rank.replay(&graph).unwrap();
            }
        }
        pairs.iter().map(|(_, summed)| rank.get::<f32>(*summed)).collect()
    })
}

/// What ranks of `mesh` must find: sums within each replica in rank order, of these in the order of replicas.
fn check_sums(mesh: Mesh, found: &[Vec<Vec<f32>>]) {
    for (rank, found) in found.iter().enumerate() {
        for (number, found) in found.iter().enumerate() {
            let elements = found.len() * mesh.shards() as usize;
            let first = found.len() * mesh.position(RankId::at(rank), Group::Shard) as usize;
            let add = |one: Vec<f32>, other: Vec<f32>| -> Vec<f32> {
                one.iter().zip(&other).map(|(one, other)| one + other).collect()
            };
            let of_replica = |replica: u32| {
                let ranks = (0..mesh.shards()).map(|shard| (replica * mesh.shards() + shard) as usize);
                let rows = ranks.map(|rank| values(rank, number, elements)[first..][..found.len()].to_vec());
                rows.reduce(add).unwrap()
            };
            let expected = (0..mesh.replicas()).map(of_replica).reduce(add).unwrap();
            assert_eq!(*found, expected, "{mesh}, rank {rank}, gradient {number}");
        }
    }
}

fn a_gradient_is_summed_over_a_replica_and_then_over_the_replicas() {
    for mesh in meshes() {
        check_sums(mesh, &sums(mesh, false));
    }
}

/// EX-1, with ranks that meet others in every collective.
fn a_captured_sum_over_replicas_is_the_sum() {
    let most = most_captured_ranks();
    for mesh in meshes().into_iter().filter(|mesh| mesh.ranks() <= most) {
        check_sums(mesh, &sums(mesh, true));
    }
}

/// So many values that ranks combine slices for each other, in numbers that no number of ranks divides, and some that
/// are too few to be cut by themselves.
fn many_values_are_combined_in_rank_order_whoever_combines_them() {
    let groups = meshes().into_iter().flat_map(|mesh| [(mesh, Group::World), (mesh, Group::Replicate)]);
    for (mesh, group) in groups.filter(|(mesh, group)| mesh.size(*group) > 2) {
        for reduction in [Reduction::Sum, Reduction::Max] {
            check_combined(mesh, group, reduction, [300_001, 7, 200_002, 900]);
        }
    }
    // Two ranks save only room.
    check_combined(Mesh::new(2).unwrap(), Group::World, Reduction::Sum, [4_200_001, 7, 3, 900]);
}

fn check_combined(mesh: Mesh, group: Group, reduction: Reduction, elements: [usize; 4]) {
    let captured = mesh.ranks() <= most_captured_ranks();
    let mut plan = Plan::over(mesh, &[]);
    let pairs = elements.map(|elements| {
        let (_, from) = plan.buffer(&format!("{elements} values"), elements, Residency::Resident);
        let (_, to) = plan.buffer(&format!("{elements} combined"), elements, Residency::Resident);
        (from, to)
    });
    plan.op(LINK, Op::AllReduce(AllReduce { reduction, group, pairs: pairs.to_vec() }));
    // A maximum ignores what is no number.
    let given = move |rank: usize, turn: usize, elements: usize| {
        let mut given = values(rank, turn, elements);
        if reduction == Reduction::Max {
            given.iter_mut().skip(rank).step_by(7).for_each(|value| *value = f32::NAN);
        }
        given
    };
    let found = run(plan, move |rank| {
        let put = |rank: &super::harness::Rank<_>, turn: usize| {
            for ((from, to), elements) in pairs.iter().zip(elements) {
                rank.put(*from, &given(rank.number(), turn, elements));
                rank.put(*to, &vec![f32::NAN; elements]);
            }
        };
        for turn in 0..2 {
            put(rank, turn);
            rank.step().unwrap();
        }
        let issued = pairs.map(|(_, to)| rank.get::<f32>(to));
        if !captured {
            return (issued, None);
        }
        let graph = rank.capture_graph().unwrap();
        for turn in [0, 2] {
            put(rank, turn);
            rank.replay(&graph).unwrap();
        }
        (issued, Some(pairs.map(|(_, to)| rank.get::<f32>(to))))
    });
    let combine = |one: Vec<f32>, other: Vec<f32>| -> Vec<f32> {
        let both = one.iter().zip(&other);
        match reduction {
            Reduction::Sum => both.map(|(one, other)| one + other).collect(),
            Reduction::Max => both.map(|(one, other)| one.max(*other)).collect(),
        }
    };
    let check = |rank: usize, turn: usize, found: &[Vec<f32>]| {
        for (found, elements) in found.iter().zip(elements) {
            let members = mesh.members(RankId::at(rank), group);
            let expected =
                members.map(|member| given(member.index(), turn, elements)).reduce(combine).unwrap();
            assert!(*found == expected, "{mesh}, rank {rank}, {reduction:?} of {elements} over {group}");
        }
    };
    for (rank, (issued, replayed)) in found.iter().enumerate() {
        check(rank, 1, issued);
        if let Some(replayed) = replayed {
            check(rank, 2, replayed);
        }
    }
}

fn a_gather_takes_the_shards_of_the_rank_s_own_replica() {
    for (mesh, chunk) in meshes().into_iter().flat_map(|mesh| [(mesh, None), (mesh, Some(13))]) {
        let mut plan = Plan::over(mesh, &[sharded(12, 5, Format::F32)]);
        let from = plan.resident("shard", Content::Shard(W, ROWWISE));
        let to = plan.transient("gathered", Content::Gathered(W, ROWWISE));
        let part = GatherPart { weight: W, orientation: ROWWISE, from, to };
        match chunk {
            None => plan.gather(&[part]),
            Some(bytes) => plan.gather_in_chunks(part, bytes),
        }
        let elements = 60 / mesh.shards() as usize;
        let gathered = run(plan, move |rank| {
            // Replicas that got different things would show it.
            rank.put(from, &noise(elements, rank.number() as u32));
            rank.step().unwrap();
            rank.get::<f32>(to)
        });
        for (rank, found) in gathered.iter().enumerate() {
            let members = mesh.members(RankId::at(rank), Group::Shard);
            let expected: Vec<f32> = members.flat_map(|member| noise(elements, member.number())).collect();
            assert_eq!(found[..60], expected, "{mesh}, rank {rank}, chunks of {chunk:?}");
        }
    }
}

/// Where each replica has a slice of a shard: what is published is the shard, and its gather the weight.
fn a_shard_is_published_of_the_slices_that_replicas_have() {
    for (mesh, format) in meshes().into_iter().flat_map(|mesh| [(mesh, Format::F32), (mesh, Format::Bf16)]) {
        let mut plan = Plan::over(mesh, &[sharded(24, 5, format)]);
        let state = StateLayout { shard: OptimizerShard::Replicas, ..StateLayout::default() };
        plan.weights = plan.weights.with_state(state);
        let layout = plan.weights.layout(W).clone();
        let own = plan.resident("slice", Content::Shard(W, ROWWISE));
        let shard = plan.transient("published", Content::Published(W, ROWWISE));
        let to = plan.transient("gathered", Content::Gathered(W, ROWWISE));
        let given = if layout.is_in_slices() {
            let parts = vec![GatherPart { weight: W, orientation: ROWWISE, from: own, to: shard }];
            let group = layout.shard.slicers(mesh);
            plan.op(LINK, Op::AllGather(AllGather { group, parts: parts.clone() }));
            plan.fence(LINK, QUANTIZE);
            plan.op(QUANTIZE, Op::Assemble(Assemble { parts }));
            plan.fence(QUANTIZE, LINK);
            shard
        } else {
            own
        };
        plan.gather(&[GatherPart { weight: W, orientation: ROWWISE, from: given, to }]);
        let bytes = layout.shard_bytes(ROWWISE);
        let slice = move |rank: RankId| -> Vec<u8> {
            (0..bytes).map(|at| (at * 7 + rank.index() * 31) as u8).collect()
        };
        let gathered = run(plan, move |rank| {
            rank.put(own, &slice(RankId::at(rank.number())));
            rank.step().unwrap();
            rank.get::<u8>(to)
        });
        for (rank, found) in gathered.iter().enumerate() {
            // Of the rank's own optimizer instance.
            let of_instance = mesh.ranks() / mesh.instances();
            let first = rank as u32 / of_instance * of_instance;
            let owners = layout.shard.owners_of(0).map(|owner| RankId::new(first + owner.number()));
            let expected: Vec<u8> = owners.flat_map(slice).collect();
            assert_eq!(found[..expected.len()], expected, "{mesh}, {format}, rank {rank}");
        }
    }
}

fn every_group_combines_its_own_ranks_and_records_come_from_all() {
    for mesh in meshes() {
        let mut plan = Plan::over(mesh, &[]);
        let (_, own) = plan.buffer("own", 1, Residency::Resident);
        let groups =
            [Group::Shard, Group::Replicate, Group::ReplicateInInstance, Group::Instances, Group::World];
        let kinds = [Reduction::Sum, Reduction::Max];
        let results = groups.map(|group| {
            kinds.map(|reduction| {
                let (_, to) = plan.buffer(&format!("{reduction:?} over {group}"), 1, Residency::Resident);
                plan.op(LINK, Op::AllReduce(AllReduce { reduction, group, pairs: vec![(own, to)] }));
                to
            })
        });
        let record = plan.transient("record", Content::NormRecord);
        let records = plan.transient("records", Content::NormRecords);
        plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
        let found = run(plan, move |rank| {
            let number = rank.number() as u32;
            rank.put(own, &[(1u32 << number) as f32]);
            rank.put(record, &[NormRecord { squares: 0.0, fault: number, reserved: 0 }]);
            // Words that were not cleared by one group would let the next step's through.
            for _ in 0..3 {
                rank.step().unwrap();
            }
            let told: Vec<u32> = rank.get::<NormRecord>(records).iter().map(|record| record.fault).collect();
            (results.map(|kinds| kinds.map(|slot| rank.get::<f32>(slot)[0] as u32)), told)
        });
        for (rank, (results, told)) in found.into_iter().enumerate() {
            for (group, [sum, max]) in groups.into_iter().zip(results) {
                let members = || mesh.members(RankId::at(rank), group).map(|member| 1 << member.number());
                assert_eq!(sum, members().sum::<u32>(), "{mesh}, rank {rank}, {group}");
                assert_eq!(Some(max), members().max(), "{mesh}, rank {rank}, {group}");
            }
            assert_eq!(told, (0..mesh.ranks()).collect::<Vec<_>>());
        }
    }
}

bodies! {
    a_gradient_is_summed_over_a_replica_and_then_over_the_replicas,
    a_captured_sum_over_replicas_is_the_sum,
    many_values_are_combined_in_rank_order_whoever_combines_them,
    a_gather_takes_the_shards_of_the_rank_s_own_replica,
    a_shard_is_published_of_the_slices_that_replicas_have,
    every_group_combines_its_own_ranks_and_records_come_from_all,
}
