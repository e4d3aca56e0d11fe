//! PL-2 and PL-4 for weights that travel together, and for gradients that travel in bf16.

use warpweft_base::id::WeightId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{DeclareError, Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{AllGather, Dequantize, ExchangeGradient, Op, RoundGradient, Transpose, WireType};
use warpweft_plan::plan::{GatherStart, Policy, StepPlan, verify};
use warpweft_plan::policy::ReduceDtype;

use super::edit::{is_reduction, position, recount, reduced_parts, refused, remove, serialize, slot, spread};
use super::programs::policy;

const EXPERTS: usize = 4;

/// A dense layer, a layer of experts that one call uses all of, forward and backward, and another dense layer. The
/// experts are in groups of so many, or in none.
pub(crate) fn experts(format: Format, groups_of: Option<usize>) -> StepProgram {
    let mut model = Model::builder();
    let before = model.sharded("before", 64, 64, format).unwrap();
    let experts: Vec<WeightId> = (0..EXPERTS)
        .map(|n| model.sharded(&format!("expert{n}"), 64 + 32 * n, 64, format).unwrap())
        .collect();
    let after = model.sharded("after", 64, 64, format).unwrap();
    for (number, members) in groups_of.into_iter().flat_map(|of| experts.chunks(of)).enumerate() {
        model.group(&format!("experts.{number}"), members).unwrap();
    }
    let mut program = StepProgram::builder("experts", &model.build());
    for (name, orientation) in [("forward", Orientation::Rowwise), ("backward", Orientation::Columnwise)] {
        let trains = name == "backward";
        let mut layers = [("before", vec![before]), ("experts", experts.clone()), ("after", vec![after])];
        if trains {
            layers.reverse();
        }
        for (layer, weights) in layers {
            let mut call = program.call(&format!("{layer}.{name}"), Phase::Forward);
            for weight in weights {
                call = call.uses(weight, orientation, Form::Dense);
                call = if trains { call.gradient(weight) } else { call };
            }
            call.add().unwrap();
        }
    }
    program.build_training().unwrap()
}

/// Every use has a gather of its own.
fn on_demand() -> Policy {
    Policy { prefetch: GatherStart::Depth(0), ..policy() }
}

/// All experts are one group, or each is one.
fn plan(together: bool, policy: &Policy) -> StepPlan {
    let of = if together { EXPERTS } else { 1 };
    StepPlan::build(&experts(Format::NVFP4_2D, Some(of)), policy, Mesh::new(4).unwrap()).unwrap()
}

fn count(plan: &StepPlan, wanted: impl Fn(&Op) -> bool) -> usize {
    plan.tasks.iter().filter(|task| wanted(&task.op)).count()
}

fn is_grouped(op: &Op) -> bool {
    match op {
        Op::AllGather(AllGather { parts, .. }) => parts.len() == EXPERTS,
        Op::ExchangeGradient(ExchangeGradient { parts, .. }) => parts.len() == EXPERTS,
        _ => false,
    }
}

#[test]
fn a_group_is_gathered_and_reduced_as_one_collective_with_the_same_bytes() {
    let (together, apart) = (plan(true, &on_demand()), plan(false, &on_demand()));
    let collectives = |plan: &StepPlan| count(plan, |op| matches!(op, Op::AllGather(_)) || is_reduction(op));
    // Less three of four twice forward and backward, and once in the reduction.
    assert_eq!(collectives(&apart) - collectives(&together), 3 * (EXPERTS - 1));
    assert_eq!(count(&together, is_grouped), 3);
    assert_eq!(together.bounds.wire_bytes, apart.bounds.wire_bytes);
    assert_eq!(verify(&together).unwrap().uses, verify(&apart).unwrap().uses);
    assert_eq!(verify(&together).unwrap().gradients, verify(&apart).unwrap().gradients);
}

/// A call counts once, however many weights and groups it uses: a depth of 1 hides them behind the call before.
#[test]
fn a_group_is_gathered_as_far_ahead_as_a_single_weight() {
    for depth in 1..4 {
        let plan = plan(true, &Policy { prefetch: GatherStart::Depth(depth), ..policy() });
        let gather = position(&plan, 1, |op| matches!(op, Op::AllGather(_)));
        assert!(is_grouped(&plan.tasks[gather].op));
        assert_eq!(plan.tasks[gather].release, None, "released at the beginning, with the call before it");
    }
}

#[test]
fn a_group_is_asked_for_at_once_also_by_bytes() {
    let all = plan(true, &policy()).bounds.live_bytes;
    let plan = plan(true, &Policy { prefetch: GatherStart::Bytes(all), ..policy() });
    assert_eq!(count(&plan, is_grouped), 2, "the planes are still there in backward");
}

/// PL-2
#[test]
fn a_group_s_gather_that_sends_another_weight_s_shard_is_refused() {
    let mut plan = plan(true, &policy());
    let wrong = slot(&plan, Content::Shard(WeightId::new(0), Orientation::Rowwise));
    let gather = position(&plan, 0, is_grouped);
    let Op::AllGather(AllGather { parts, .. }) = &mut plan.tasks[gather].op else { unreachable!() };
    parts[2].from = wrong;
    serialize(&mut plan);
    refused(&plan, &["PL-2", "expert0 and 3 more", "shard of `expert2`"]);
}

/// PL-2
#[test]
fn a_member_left_out_of_its_group_s_gather_is_missed() {
    let mut plan = plan(true, &policy());
    spread(&mut plan);
    let gather = position(&plan, 0, is_grouped);
    let Op::AllGather(AllGather { parts, .. }) = &mut plan.tasks[gather].op else { unreachable!() };
    parts.remove(1);
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-2", "`expert1`", "holds nothing"]);
}

/// What is derived of a group's planes for one call: the first task that transposes, or dequantizes, all of them.
#[track_caller]
fn derived(plan: &StepPlan, name: &str) -> usize {
    position(plan, 0, |op| match op {
        Op::Transpose(Transpose { parts }) => parts.len() == EXPERTS && name == op.name(),
        Op::Dequantize(Dequantize { parts }) => parts.len() == EXPERTS && name == op.name(),
        _ => false,
    })
}

/// PL-2
#[test]
fn a_member_left_out_of_what_is_derived_is_missed() {
    for name in ["transpose", "dequantize"] {
        let mut plan = plan(true, &policy());
        spread(&mut plan);
        let task = derived(&plan, name);
        match &mut plan.tasks[task].op {
            Op::Transpose(Transpose { parts }) => drop(parts.remove(2)),
            Op::Dequantize(Dequantize { parts }) => drop(parts.remove(2)),
            _ => unreachable!(),
        }
        recount(&mut plan);
        refused(&plan, &["PL-2", "`expert2`", "holds nothing"]);
    }
}

/// PL-3: parts are done at the same time, so two of them write no common byte.
#[test]
fn members_that_are_derived_into_one_slot_are_a_race() {
    for name in ["transpose", "dequantize"] {
        let mut plan = plan(true, &policy());
        let task = derived(&plan, name);
        match &mut plan.tasks[task].op {
            Op::Transpose(Transpose { parts }) => parts[1] = parts[0],
            Op::Dequantize(Dequantize { parts }) => parts[1] = parts[0],
            _ => unreachable!(),
        }
        refused(&plan, &["PL-3", "expert0"]);
    }
}

/// PL-2
#[test]
fn members_that_are_derived_of_each_other_s_planes_are_refused() {
    for name in ["transpose", "dequantize"] {
        let mut plan = plan(true, &policy());
        let task = derived(&plan, name);
        match &mut plan.tasks[task].op {
            Op::Transpose(Transpose { parts }) => {
                (parts[0].from, parts[1].from) = (parts[1].from, parts[0].from)
            }
            Op::Dequantize(Dequantize { parts }) => {
                (parts[0].from, parts[1].from) = (parts[1].from, parts[0].from)
            }
            _ => unreachable!(),
        }
        refused(&plan, &["PL-2", &format!("({name} of expert0 and 3 more)"), "`expert0`", "`expert1`"]);
    }
}

/// PL-4
#[test]
fn a_member_left_out_of_its_group_s_reduction_is_missed() {
    let mut plan = plan(true, &policy());
    spread(&mut plan);
    let reduction = position(&plan, 0, |op| is_reduction(op) && is_grouped(op));
    reduced_parts(&mut plan, reduction).remove(3);
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-4", "the other ranks' slices in f32 of the gradient of `expert3`"]);
}

/// PL-4
#[test]
fn members_that_swap_their_gradients_are_refused() {
    let mut plan = plan(true, &policy());
    let reduction = position(&plan, 0, |op| is_reduction(op) && is_grouped(op));
    let parts = reduced_parts(&mut plan, reduction);
    (parts[0].from, parts[1].from) = (parts[1].from, parts[0].from);
    serialize(&mut plan);
    refused(&plan, &["PL-4", "needs a call's gradient of `expert0`"]);
}

fn rounded() -> StepPlan {
    plan(true, &Policy { reduce_dtype: ReduceDtype::Bf16, ..policy() })
}

#[test]
fn gradients_in_bf16_take_half_the_bytes_on_the_wire() {
    let gradients = |plan: &StepPlan| {
        let reductions = plan.tasks.iter().filter(|task| is_reduction(&task.op));
        reductions.map(|task| task.wire_bytes).sum::<usize>()
    };
    assert_eq!(2 * gradients(&rounded()), gradients(&plan(true, &policy())));
}

/// PL-4
#[test]
fn a_gradient_that_was_not_rounded_does_not_travel_in_bf16() {
    let mut plan = rounded();
    spread(&mut plan);
    let rounding = position(&plan, 0, |op| matches!(op, Op::RoundGradient(_)));
    remove(&mut plan, rounding);
    refused(&plan, &["PL-4", "rounded to bf16", "round the gradient before it is reduced"]);
}

/// PL-4
#[test]
fn a_rounded_gradient_is_not_read_as_f32() {
    let mut plan = rounded();
    let reduction = position(&plan, 0, is_reduction);
    let Op::ExchangeGradient(ExchangeGradient { wire, .. }) = &mut plan.tasks[reduction].op else {
        unreachable!()
    };
    *wire = WireType::F32;
    refused(&plan, &["PL-4", "needs a call's gradient of", "rounded to bf16"]);
}

/// PL-4
#[test]
fn a_gradient_of_another_weight_is_not_rounded() {
    let mut plan = rounded();
    let (one, other) = (reduction_of(&plan, 0), position(&plan, 1, |op| matches!(op, Op::RoundGradient(_))));
    let Op::RoundGradient(RoundGradient { from, .. }) = &mut plan.tasks[other].op else { unreachable!() };
    *from = one;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "(round gradient of"]);
}

/// The full gradient that the `nth` rounding reads.
fn reduction_of(plan: &StepPlan, nth: usize) -> warpweft_base::id::SlotId {
    let rounding = position(plan, nth, |op| matches!(op, Op::RoundGradient(_)));
    let Op::RoundGradient(RoundGradient { from, .. }) = plan.tasks[rounding].op else { unreachable!() };
    from
}

#[test]
fn a_group_takes_sharded_weights_once_each() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 64, 64, Format::F32).unwrap();
    let norm = model.replicated("norm", 1, 64).unwrap();
    let refusal = |model: &mut warpweft_plan::model::ModelBuilder, name, members: &[WeightId]| {
        model.group(name, members).unwrap_err()
    };
    assert!(matches!(refusal(&mut model, "g", &[norm]), DeclareError::ReplicatedGroup { .. }));
    assert!(matches!(refusal(&mut model, "g", &[WeightId::new(7)]), DeclareError::Unknown { .. }));
    model.group("g", &[weight]).unwrap();
    assert!(matches!(refusal(&mut model, "g", &[]), DeclareError::Duplicate { .. }));
    assert!(matches!(refusal(&mut model, "h", &[weight]), DeclareError::TwoGroups { .. }));
    assert_eq!(model.build().groups(), ["g"]);
}
