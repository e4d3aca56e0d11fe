//! PL-4 with expert parallelism: gradients and amaxes of an expert are of the ranks that share it, and of no others.
//!
//! Law: as of tensor parallelism (`tensor.rs`), a plan that names the wrong ranks is refused by the weight's name, and
//! what no plan says is compared with what the mesh means, for every rank.

use warpweft_base::id::SlotId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, StateLayout, Weights};
use warpweft_plan::model::{Form, Group, Mesh, Model, Phase, StepProgram, TensorParallel};
use warpweft_plan::op::{AllGather, AllReduce, Op, Reduction};
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan, VerifyError, verify};
use warpweft_plan::policy::{OptimizerShard, Reduce};

use super::edit::{position, recount, refused, spread, weight};
use super::programs::policy;
use super::tensor::{Derived, derived, of, set_group};

/// Ranks, replicas, ranks that share the experts, and those that one is sharded over.
const MESHES: [(u32, u32, u32, u32); 4] = [(4, 1, 2, 1), (8, 2, 2, 4), (16, 2, 2, 2), (16, 2, 4, 4)];

/// A router that all ranks share, and two experts of each rank.
fn program(declare: impl Fn(&mut Model) -> Vec<warpweft_base::id::WeightId>) -> StepProgram {
    let mut model = Model::default();
    let all = declare(&mut model);
    let mut program = StepProgram::builder("train", &model);
    for number in 0..2 {
        let mut call = program.call(&format!("call {number}"), Phase::Backward);
        for weight in &all {
            call = call.uses(*weight, Orientation::Rowwise, Form::Dense).gradient(*weight);
        }
        call.add().unwrap();
    }
    program.build_training().unwrap()
}

fn experts(names: &'static [&'static str], tokens: Option<TensorParallel>) -> StepProgram {
    program(|built| {
        let mut model = Model::builder();
        let mut all = Vec::new();
        for name in ["router"].iter().chain(names) {
            let weight = model.sharded(name, 64, 32, Format::NVFP4_2D).unwrap();
            tokens.into_iter().for_each(|how| model.tensor_parallel(weight, how).unwrap());
            if *name != "router" {
                model.expert_parallel(weight).unwrap();
            }
            all.push(weight);
        }
        *built = model.build();
        all
    })
}

const NAMES: &[&str] = &["experts.0.w", "experts.1.w"];

fn mesh((ranks, replicas, ep, shards): (u32, u32, u32, u32)) -> Mesh {
    Mesh::hybrid(ranks, replicas).and_then(|mesh| mesh.with_experts(ep, Some(shards))).unwrap()
}

fn training(axes: (u32, u32, u32, u32), reduce: Reduce) -> StepPlan {
    let policy = Policy { reduce, ..policy() };
    let mut plan = StepPlan::build(&experts(NAMES, None), &policy, mesh(axes)).unwrap();
    spread(&mut plan);
    recount(&mut plan);
    plan
}

#[test]
fn plans_of_experts_are_accepted_on_every_mesh() {
    for axes in MESHES {
        for reduce in [Reduce::Ordered, Reduce::Nccl] {
            verify(&training(axes, reduce)).unwrap();
        }
    }
}

/// PL-4. Ranks between those that share an expert have gradients of others.
#[test]
fn a_gradient_of_an_expert_that_is_summed_with_those_of_others_is_refused() {
    for wrong in [Group::Shard, Group::Replica, Group::Expert, Group::ExpertReplica, Group::World] {
        let mut plan = training((16, 2, 2, 2), Reduce::Ordered);
        let task = of(&plan, "experts.0.w", |op| matches!(op, Op::ExchangeGradient(_)));
        set_group(&mut plan, task, wrong);
        let says = format!("reduces the gradient of `experts.0.w` over the {wrong} group");
        refused(&plan, &["PL-4", &says, "sum over: expert_shard"]);
    }
    let mut plan = training((16, 2, 2, 2), Reduce::Ordered);
    let task = of(&plan, "router", |op| matches!(op, Op::ExchangeGradient(_)));
    set_group(&mut plan, task, Group::ExpertShard);
    refused(&plan, &["PL-4", "reduces the gradient of `router` over the expert_shard group"]);
}

/// PL-4. Copies of an expert are on other ranks than copies of what all ranks share.
#[test]
fn a_gradient_of_an_expert_summed_over_replicas_in_the_place_of_its_copies_is_refused() {
    for (name, wrong) in [("experts.0.w", Group::Replicate), ("router", Group::ExpertReplica)] {
        let mut plan = training((16, 2, 2, 2), Reduce::Ordered);
        let found = weight(&plan, name);
        let is_of = |slot: SlotId| matches!(plan.arena.slot(slot).content, Content::ReducedGradient(weight, _) if weight == found);
        let task = position(
            &plan,
            0,
            |op| matches!(op, Op::AllReduce(AllReduce { pairs, .. }) if pairs.iter().any(|(from, _)| is_of(*from))),
        );
        set_group(&mut plan, task, wrong);
        let error = refused(&plan, &["PL-4", name]);
        assert!(matches!(error, VerifyError::Gradient { .. }), "{error}");
    }
}

/// PL-10. Each expert has an amax of its own, and the ranks of a replica have several experts in one place.
#[test]
fn amaxes_of_experts_taken_over_a_replica_are_refused() {
    let mut plan = training((16, 2, 2, 2), Reduce::Ordered);
    let is_of_experts = |op: &Op| {
        matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, group: Group::ExpertShard, .. }))
    };
    let task = position(&plan, 0, is_of_experts);
    set_group(&mut plan, task, Group::Replica);
    refused(&plan, &["PL-10", "takes maxima over the replica group", "others have other experts"]);
}

/// The same experts, whose copies share their optimizer state, as replicas share that of the router.
fn in_slices() -> StepPlan {
    let program = experts(NAMES, None);
    let state = StateLayout { shard: OptimizerShard::Replicas, ..StateLayout::default() };
    let weights = Weights::new(program.model().weights(), mesh((16, 2, 4, 2))).with_state(state);
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    let mut plan = StepPlan::within(&program, &weights, &resident, &policy()).unwrap();
    spread(&mut plan);
    recount(&mut plan);
    plan
}

/// PL-10. Replicas of the router at one place have other experts than the rank, or other rows of them.
#[test]
fn a_slice_of_an_expert_published_over_replicas_in_the_place_of_its_copies_is_refused() {
    verify(&in_slices()).unwrap();
    for wrong in [Group::ExpertShard, Group::Expert, Group::World] {
        let mut plan = in_slices();
        let publishes = |op: &Op| matches!(op, Op::AllGather(AllGather { group: Group::ExpertReplica, .. }));
        let task = position(&plan, 0, publishes);
        set_group(&mut plan, task, wrong);
        let says = format!("brings the {wrong} group together for a shard of `experts.");
        refused(&plan, &["PL-10", &says, "publish a shard among the ranks that have its slices"]);
    }
}

/// PL-10. A copy has some rows of an expert alone, and other ranks have other experts.
#[test]
fn amaxes_of_experts_in_slices_are_taken_over_all_their_rows_and_no_others() {
    let is_of_experts = |op: &Op| {
        matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, group: Group::ExpertRows, .. }))
    };
    for wrong in [Group::ExpertShard, Group::ExpertReplica, Group::World] {
        let mut plan = in_slices();
        let task = position(&plan, 0, is_of_experts);
        set_group(&mut plan, task, wrong);
        let says = format!("takes maxima over the {wrong} group");
        refused(&plan, &["PL-10", &says, "others have other experts"]);
    }
}

/// An expert's gradient is of the tokens of all groups that sent it some, and their number divides it; how many ranks
/// share its rows, and how many experts there are, does not.
#[test]
fn an_expert_is_divided_as_any_weight_and_is_in_the_norm_once() {
    for axes in MESHES {
        for reduce in [Reduce::Ordered, Reduce::Nccl] {
            let plan = training(axes, reduce);
            for (weight, Derived { factors, counted }) in derived(&plan) {
                let layout = plan.weights.layout(weight);
                let wanted = 1.0 / axes.0 as f32;
                assert!(
                    !factors.is_empty() && factors.iter().all(|factor| *factor == wanted),
                    "{}",
                    layout.name
                );
                // Each place has another expert.
                let elements = layout.shard.whole().elements() * layout.places().len();
                assert_eq!(counted, elements, "`{}` on {axes:?}", layout.name);
            }
        }
    }
}

#[test]
fn experts_without_numbers_and_tokens_that_reach_them_several_times_are_refused() {
    let error = |program: &StepProgram, mesh: Mesh| StepPlan::build(program, &policy(), mesh).unwrap_err();
    for names in [
        &["experts.w"][..],
        &["experts.0.w", "experts.2.w"],
        &["experts.1.w"],
        &["layers.0.moe.w", "layers.1.moe.w"],
    ] {
        let found = error(&experts(names, None), mesh((4, 1, 2, 2)));
        assert!(matches!(&found, PlanError::ExpertParallel { ep: 2, .. }), "{found}");
        assert!(found.to_string().contains("no number of its own"), "{found}");
    }
    let twice = program(|built| {
        let mut model = Model::builder();
        let [expert, dense] =
            ["experts.0.w", "experts.1.w"].map(|name| model.sharded(name, 64, 32, Format::Bf16).unwrap());
        model.expert_parallel(expert).unwrap();
        *built = model.build();
        vec![expert, dense]
    });
    let found = error(&twice, mesh((4, 1, 2, 2))).to_string();
    assert!(
        found.contains("would be `experts.1.w` on some ranks") && found.contains("rename one of them"),
        "{found}"
    );
    let cut = Mesh::of(8, 1, 2, None).and_then(|mesh| mesh.with_experts(4, None)).unwrap();
    let alike = error(&experts(NAMES, Some(TensorParallel::AlikeTokens)), cut);
    assert!(alike.to_string().contains("TensorParallel::SplitTokens"), "{alike}");
    let split = experts(NAMES, Some(TensorParallel::SplitTokens));
    verify(&StepPlan::build(&split, &policy(), cut).unwrap()).unwrap();
}
