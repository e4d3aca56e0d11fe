//! PL-4 with tensor parallelism: a gradient is summed over all ranks that have some of its tokens, each token is
//! counted once, and each element is in the norm once.
//!
//! Law: which ranks sum is said by ops, so a plan that says it wrongly is refused, by the weight's name. By what a sum
//! is divided, and which ranks count an element in the norm, no plan says: each rank derives it from the mesh and from
//! what its weight declares (`backend/local/gradient.rs`), so no edit of a plan can get it wrong, and it is compared
//! here with what the declarations mean, for every rank.

use std::collections::BTreeMap;

use warpweft_backend::local::{LocalOp, NormSource, resolve};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Form, Group, Mesh, Model, Phase, StepProgram, TensorParallel};
use warpweft_plan::op::{Accumulate, AllGather, AllReduce, ExchangeGradient, Op, ReduceScatter, SumGradient};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};
use warpweft_plan::policy::Reduce;

use super::edit::{position, recount, refused, remove, spread, summed, weight};
use super::programs::policy;

use TensorParallel::{AlikeTokens, ColumnParallel, RowParallel, SplitTokens};

/// Ranks, replicas, and ranks of a tensor-parallel group.
const MESHES: [(u32, u32, u32); 4] = [(2, 1, 2), (4, 1, 2), (8, 2, 2), (8, 2, 4)];

/// A layer whose weights are cut each way, an embedding and a router that are not, and copies of both sorts.
fn program() -> StepProgram {
    let mut model = Model::builder();
    let mut all = Vec::new();
    for (name, rows, how) in [
        ("up", 32, ColumnParallel),
        ("down", 16, RowParallel),
        ("embedding", 64, SplitTokens),
        ("router", 24, AlikeTokens),
    ] {
        let weight = model.sharded(name, rows, 16, Format::F32).unwrap();
        model.tensor_parallel(weight, how).unwrap();
        all.push(weight);
    }
    for (name, how) in [("norm", SplitTokens), ("bias", AlikeTokens)] {
        let weight = model.replicated(name, 1, 16).unwrap();
        model.tensor_parallel(weight, how).unwrap();
        all.push(weight);
    }
    let mut program = StepProgram::builder("train", &model.build());
    for number in 0..2 {
        let mut call = program.call(&format!("call {number}"), Phase::Backward);
        for weight in &all {
            call = call.uses(*weight, Orientation::Rowwise, Form::Dense).gradient(*weight);
        }
        call.add().unwrap();
    }
    program.build_training().unwrap()
}

fn training((ranks, replicas, tensor): (u32, u32, u32), reduce: Reduce) -> StepPlan {
    let mesh = Mesh::of(ranks, replicas, tensor, None).unwrap();
    let mut plan = StepPlan::build(&program(), &Policy { reduce, ..policy() }, mesh).unwrap();
    spread(&mut plan);
    recount(&mut plan);
    plan
}

/// The first op that brings this gradient to its owners, or sums it there.
pub(crate) fn of(plan: &StepPlan, name: &str, wanted: fn(&Op) -> bool) -> usize {
    let found = weight(plan, name);
    position(plan, 0, |op| {
        let reduces = match op {
            Op::ExchangeGradient(ExchangeGradient { parts, .. })
            | Op::ReduceScatter(ReduceScatter { parts, .. }) => parts.iter().any(|part| part.weight == found),
            Op::SumGradient(SumGradient { parts, .. }) => parts.iter().any(|part| part.weight == found),
            _ => false,
        };
        reduces && wanted(op)
    })
}

pub(crate) fn set_group(plan: &mut StepPlan, task: usize, to: Group) {
    match &mut plan.tasks[task].op {
        Op::ExchangeGradient(ExchangeGradient { group, .. })
        | Op::ReduceScatter(ReduceScatter { group, .. })
        | Op::SumGradient(SumGradient { group, .. })
        | Op::AllGather(AllGather { group, .. })
        | Op::AllReduce(AllReduce { group, .. }) => *group = to,
        other => panic!("a {} names no group", other.name()),
    }
    recount(plan);
}

#[test]
fn the_plans_of_every_mesh_are_accepted() {
    for mesh in MESHES {
        for reduce in [Reduce::Ordered, Reduce::Nccl] {
            verify(&training(mesh, reduce)).unwrap();
        }
    }
}

/// PL-4. With sequence parallelism each rank of a group has other tokens, so its gradient lacks theirs.
#[test]
fn a_gradient_of_split_tokens_that_the_tensor_group_does_not_sum_is_refused() {
    let summed_over = "reduces the gradient of `embedding` over the shard group";
    for task in [|op: &Op| matches!(op, Op::ExchangeGradient(_)), |op: &Op| matches!(op, Op::SumGradient(_))]
    {
        let mut plan = training((8, 2, 2), Reduce::Ordered);
        let task = of(&plan, "embedding", task);
        set_group(&mut plan, task, Group::Shard);
        refused(&plan, &["PL-4", summed_over, "sum over: replica"]);
    }
    let mut plan = training((8, 2, 2), Reduce::Nccl);
    let task = of(&plan, "embedding", |op| matches!(op, Op::ReduceScatter(_)));
    set_group(&mut plan, task, Group::Shard);
    refused(
        &plan,
        &["brings the shard group together for `embedding`, which is sharded over the replica group"],
    );
    // Of a copy, ranks have the same rows, and their sum is one over all ranks.
    for lacking in [Group::Shard, Group::Tensor, Group::Replicate, Group::Replica] {
        let mut plan = training((8, 2, 2), Reduce::Ordered);
        let norm = weight(&plan, "norm");
        let is_norm = |slot: SlotId| plan.arena.slot(slot).content == Content::LocalGrad(norm);
        let task = position(
            &plan,
            0,
            |op| matches!(op, Op::AllReduce(AllReduce { pairs, .. }) if pairs.iter().any(|(from, _)| is_norm(*from))),
        );
        set_group(&mut plan, task, lacking);
        let error = refused(&plan, &["PL-4", "norm", "sum gradients of replicated weights over the world"]);
        assert!(matches!(error, VerifyError::Gradient { .. }), "{error}");
    }
}

/// PL-4. The ranks of a tensor-parallel group have gradients of other rows and columns.
#[test]
fn a_gradient_of_a_part_that_is_summed_with_those_of_other_parts_is_refused() {
    for name in ["up", "down"] {
        for wrong in [Group::Replica, Group::Tensor, Group::World] {
            let mut plan = training((8, 2, 2), Reduce::Ordered);
            let task = of(&plan, name, |op| matches!(op, Op::ExchangeGradient(_)));
            set_group(&mut plan, task, wrong);
            let says = format!("reduces the gradient of `{name}` over the {wrong} group");
            // With as many ranks a tensor-parallel group is told by who they are.
            refused(&plan, &["PL-4", &says, "sum over: shard"]);
        }
    }
}

/// PL-4. Each rank of a group counts all of its tokens, so the sum is one of so many times too much.
#[test]
fn a_gradient_of_alike_tokens_divided_as_one_of_split_tokens_is_refused() {
    let mut plan = training((4, 1, 2), Reduce::Ordered);
    let is_sum = |op: &Op| matches!(op, Op::SumGradient(_));
    let [one, other] = ["embedding", "router"].map(|name| of(&plan, name, is_sum));
    assert_ne!(one, other, "the planner divides them apart");
    let (earlier, later) = (one.min(other), one.max(other));
    let parts = summed(&mut plan, earlier).clone();
    summed(&mut plan, later).extend(parts);
    remove(&mut plan, earlier);
    let [first, second] = if one > other { ["embedding", "router"] } else { ["router", "embedding"] };
    refused(
        &plan,
        &[
            "PL-4",
            &format!("sums gradients of `{first}` and `{second}`"),
            "counts each token once and the other once for each tensor-parallel rank",
        ],
    );
}

/// PL-4
#[test]
fn a_part_or_a_copy_that_the_norm_counts_twice_or_not_at_all_is_refused() {
    for name in ["up", "down", "embedding", "router", "norm", "bias"] {
        for times in [0, 2] {
            let mut plan = training((8, 2, 2), Reduce::Ordered);
            let counted = weight(&plan, name);
            let task = position(&plan, 0, |op| matches!(op, Op::GradNorm(_)));
            let Op::GradNorm(norm) = &mut plan.tasks[task].op else { unreachable!() };
            for counts in [&mut norm.main_grads, &mut norm.squares] {
                match counts.iter().position(|(weight, _)| *weight == counted) {
                    Some(own) if times == 0 => drop(counts.remove(own)),
                    Some(own) => counts.push(counts[own]),
                    None => {}
                }
            }
            recount(&mut plan);
            let says = format!("counts the main grad of `{name}` {times} times in the norm, and it has 1");
            let error = refused(&plan, &[&says]);
            assert!(matches!(error, VerifyError::Coverage { .. }), "{error}");
        }
    }
}

/// The factors by which ranks turn sums of a weight's gradients into means, and the elements of its main grad that go
/// into the norm, of all ranks together.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Derived {
    pub(crate) factors: Vec<f32>,
    pub(crate) counted: usize,
}

pub(crate) fn derived(plan: &StepPlan) -> BTreeMap<WeightId, Derived> {
    let mut all: BTreeMap<WeightId, Derived> = BTreeMap::new();
    let ops: Vec<_> = plan.tasks.iter().map(|task| (task.op.clone(), task.lane)).collect();
    for rank in plan.weights.mesh.iter() {
        let local = resolve(&plan.binding(rank, &ops), plan.arena.bytes()).unwrap();
        for ((op, _), local) in ops.iter().zip(&local) {
            match (op, local) {
                (Op::SumGradient(op), LocalOp::SumGradient(local)) => {
                    for part in op.parts.iter().filter(|part| part.target.accumulates()) {
                        all.entry(part.weight).or_default().factors.push(local.factor);
                    }
                }
                (Op::Accumulate(Accumulate { weight, .. }), LocalOp::Accumulate(local)) => {
                    all.entry(*weight).or_default().factors.push(local.factor);
                }
                (Op::GradNorm(op), LocalOp::GradNorm(local)) => {
                    for (weight, slot) in op.main_grads.iter().chain(&op.squares) {
                        let begins = plan.arena.region(*slot).offset;
                        let own = local.parts.iter().filter(|part| begin(part.source) == begins);
                        let elements: usize = own.map(|part| part.elements).sum();
                        all.entry(*weight).or_default().counted += elements;
                    }
                }
                _ => {}
            }
        }
    }
    all
}

/// Where a norm finds what it counts.
fn begin(source: NormSource) -> usize {
    match source {
        NormSource::MainGrad(region) | NormSource::Squares(region) => region.offset,
    }
}

/// A sum over a group's ranks is one of split tokens, or counts each of the alike ones `tensor` times; so D, the number
/// of groups, divides the one and D · `tensor` the other, and the number of ranks divides neither for being that.
#[test]
fn sums_are_divided_by_the_number_of_groups_and_those_of_alike_tokens_by_their_ranks_too() {
    for (ranks, replicas, tensor) in MESHES {
        for reduce in [Reduce::Ordered, Reduce::Nccl] {
            let plan = training((ranks, replicas, tensor), reduce);
            let derived = derived(&plan);
            for (name, divisor) in [
                ("up", ranks / tensor),
                ("down", ranks / tensor),
                ("embedding", ranks / tensor),
                ("norm", ranks / tensor),
                ("router", ranks),
                ("bias", ranks),
            ] {
                let factors = &derived[&weight(&plan, name)].factors;
                assert!(!factors.is_empty(), "`{name}` is never made a mean");
                let wanted = 1.0 / divisor as f32;
                assert!(
                    factors.iter().all(|factor| *factor == wanted),
                    "`{name}` on {ranks} ranks: {factors:?}"
                );
            }
        }
    }
}

#[test]
fn each_element_of_a_part_and_of_a_copy_is_in_the_norm_of_one_rank() {
    for mesh in MESHES {
        let plan = training(mesh, Reduce::Ordered);
        for (weight, Derived { counted, .. }) in derived(&plan) {
            let layout = plan.weights.layout(weight);
            assert_eq!(counted, layout.shard.whole().elements(), "`{}` on {mesh:?}", layout.name);
        }
    }
}
