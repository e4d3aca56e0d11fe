//! PL-4 where ranks sum in levels: every level takes what the one before left, of all ranks and of each once.

use warpweft_base::id::{LevelId, SlotId};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::{ExchangeGradient, Op, ReducePart, SumGradient, SumTarget, WireType};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};
use warpweft_plan::policy::ReduceDtype;

use super::edit::{position, recount, reduced, refused, relocate, remove, spread, summed};
use super::programs::{accumulating_program, policy, replicated_training};

/// Two micro-batches on 8 ranks that sum in pairs, then in pairs of these, then over both.
fn training() -> StepPlan {
    training_in(ReduceDtype::F32)
}

fn training_in(reduce_dtype: ReduceDtype) -> StepPlan {
    let mesh = Mesh::new(8).unwrap().with_levels(Levels::new(&[2, 4]).unwrap()).unwrap();
    StepPlan::build(&accumulating_program(2), &Policy { reduce_dtype, ..policy() }, mesh).unwrap()
}

const fn level(number: u32) -> Group {
    Group::Level(LevelId::new(number))
}

/// The first exchange at a level.
fn exchange(plan: &StepPlan, at: u32) -> usize {
    let of =
        |op: &Op| matches!(op, Op::ExchangeGradient(ExchangeGradient { group, .. }) if *group == level(at));
    position(plan, 0, of)
}

/// The sum of what an exchange brings.
fn sum(plan: &mut StepPlan, exchange: usize) -> usize {
    let brought = reduced(plan, exchange).to;
    let of = |op: &Op| matches!(op, Op::SumGradient(SumGradient { parts, .. }) if parts[0].received == Some(brought));
    position(plan, 0, of)
}

fn set_group(plan: &mut StepPlan, task: usize, to: Group) {
    match &mut plan.tasks[task].op {
        Op::ExchangeGradient(ExchangeGradient { group, .. }) | Op::SumGradient(SumGradient { group, .. }) => {
            *group = to;
        }
        other => panic!("a {} is of no level", other.name()),
    }
}

fn content(plan: &StepPlan, slot: SlotId) -> Content {
    plan.arena.slot(slot).content
}

#[test]
fn every_gradient_is_exchanged_and_summed_once_at_each_level() {
    let mut plan = training();
    verify(&plan).unwrap();
    let count = |wanted: &dyn Fn(&Op) -> bool| plan.tasks.iter().filter(|task| wanted(&task.op)).count();
    let exchanges = |at| {
        count(&|op| matches!(op, Op::ExchangeGradient(ExchangeGradient { group, .. }) if *group == level(at)))
    };
    let sums =
        |at| count(&|op| matches!(op, Op::SumGradient(SumGradient { group, .. }) if *group == level(at)));
    assert!(exchanges(0) > 4);
    assert_eq!([exchanges(1), exchanges(2), sums(0), sums(1), sums(2)], [exchanges(0); 5]);
    assert_eq!(exchanges(3) + sums(3), 0);
    // Of 8 slices a rank gets 4 of its neighbour, then 2 of another pair, then its own of the other half.
    let first = exchange(&plan, 0);
    let weight = reduced(&mut plan, first).weight;
    let own = plan.weights.layout(weight).stored_elements() * 4;
    let received = [0, 1, 2].map(|at| plan.tasks[exchange(&plan, at)].wire_bytes);
    assert_eq!(received, [4 * own, 2 * own, own]);
}

/// PL-4. A block's sums are read before all its ranks are in them.
#[test]
fn sums_of_blocks_exchanged_before_they_are_made_are_refused() {
    let mut plan = training();
    spread(&mut plan);
    let (first, second) = (exchange(&plan, 0), exchange(&plan, 1));
    let made = sum(&mut plan, first);
    assert!(made < second);
    relocate(&mut plan, second, made);
    let error = refused(&plan, &["PL-4", "needs the sums of level 0 of a gradient of"]);
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-3. The same where nothing lets the exchange wait.
#[test]
fn an_exchange_that_does_not_wait_for_its_block_is_refused() {
    let mut plan = training();
    let second = exchange(&plan, 1);
    plan.tasks[second].waits.clear();
    refused(&plan, &["PL-3"]);
}

/// PL-4. Over other ranks a block counts twice, or not at all.
#[test]
fn sums_of_blocks_over_the_wrong_ranks_are_refused() {
    for (at, wrong) in [(1, level(0)), (1, level(2)), (2, level(1)), (1, Group::World), (2, Group::Replicate)]
    {
        let mut plan = training();
        let task = exchange(&plan, at);
        set_group(&mut plan, task, wrong);
        recount(&mut plan);
        refused(&plan, &["exchange gradient"]);
        let mut plan = training();
        let task = exchange(&plan, at);
        let task = sum(&mut plan, task);
        set_group(&mut plan, task, wrong);
        refused(&plan, &["sum gradient"]);
    }
    let mut plan = training();
    let task = exchange(&plan, 0);
    set_group(&mut plan, task, Group::Shard);
    recount(&mut plan);
    refused(
        &plan,
        &["PL-4", "over the shard group", "8 ranks sum over: level 0, then level 1, then level 2"],
    );
}

/// PL-4. A level that is left out leaves its ranks out.
#[test]
fn a_level_that_is_left_out_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let (second, third) = (exchange(&plan, 1), exchange(&plan, 2));
    let below = reduced(&mut plan, second).from;
    assert!(matches!(content(&plan, below), Content::PartialGradient(..)));
    let last = sum(&mut plan, third);
    reduced(&mut plan, third).from = below;
    summed(&mut plan, last)[0].own = below;
    let error = refused(
        &plan,
        &["PL-4", "needs the sums of level 1", "the sums of level 0 in f32 of the gradient of"],
    );
    assert!(matches!(error, VerifyError::Gradient { .. }));
}

/// PL-4. What landed at one level is no part of the sum of another.
#[test]
fn a_sum_of_what_another_level_brought_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let (first, second) = (exchange(&plan, 0), exchange(&plan, 1));
    let brought = reduced(&mut plan, first).to;
    let task = sum(&mut plan, second);
    summed(&mut plan, task)[0].received = Some(brought);
    refused(&plan, &["PL-4", "the other ranks' sums in f32 of the gradient of", "for level 1"]);
}

/// PL-4. Sums of blocks are rounded as the plan was requested, and travel as they are.
#[test]
fn sums_of_blocks_in_another_type_than_was_requested_are_refused() {
    let mut plan = training();
    let second = exchange(&plan, 1);
    let Op::ExchangeGradient(ExchangeGradient { wire, .. }) = &mut plan.tasks[second].op else { panic!() };
    *wire = WireType::Bf16;
    refused(&plan, &["PL-4", "reduces sums of the gradient of", "in bf16, which are in f32"]);
    let mut plan = training();
    let first = exchange(&plan, 0);
    let task = sum(&mut plan, first);
    summed(&mut plan, task)[0].target = SumTarget::Rounded;
    refused(&plan, &["PL-4", "leaves sums of the gradient of", "in bf16, and not in f32"]);
    let mut plan = training();
    let third = exchange(&plan, 2);
    let task = sum(&mut plan, third);
    summed(&mut plan, task)[0].target = SumTarget::Rounded;
    refused(&plan, &["PL-4", "leaves sums of the gradient of", "round the sums of a block"]);
}

/// PL-6. Between blocks bf16 takes half of what f32 takes, on the wire and in memory.
#[test]
fn sums_of_blocks_in_bf16_are_half_as_many_bytes() {
    let [whole, half] = [ReduceDtype::F32, ReduceDtype::Bf16].map(|dtype| {
        let mut plan = training_in(dtype);
        verify(&plan).unwrap();
        [1, 2].map(|at| {
            let task = exchange(&plan, at);
            let ReducePart { from, to, .. } = *reduced(&mut plan, task);
            let bytes = |slot| plan.arena.slot(slot).region.bytes;
            [plan.tasks[task].wire_bytes, bytes(from), bytes(to)]
        })
    });
    assert_eq!(half.map(|of| of.map(|bytes| 2 * bytes)), whole);
}

/// PL-4. The sum of one block is not that of all ranks.
#[test]
fn a_main_grad_of_one_block_is_refused() {
    let mut plan = training();
    let first = exchange(&plan, 0);
    let task = sum(&mut plan, first);
    summed(&mut plan, task)[0].target = SumTarget::First;
    refused(
        &plan,
        &["PL-4", "summed over the ranks of one block of level 0", "sum them at the next level first"],
    );
}

/// PL-4
#[test]
fn a_dropped_sum_of_a_block_is_refused_and_said_where_it_is_missed() {
    let mut plan = training();
    spread(&mut plan);
    let second = exchange(&plan, 1);
    let task = sum(&mut plan, second);
    remove(&mut plan, task);
    refused(&plan, &["PL-4", "needs the sums of level 1 of a gradient of"]);
}

/// PL-4. Where a mesh has no levels, there are none.
#[test]
fn levels_that_a_mesh_does_not_have_are_refused() {
    let mut plan = replicated_training();
    let task = position(&plan, 0, |op| matches!(op, Op::ExchangeGradient(_)));
    set_group(&mut plan, task, level(1));
    recount(&mut plan);
    refused(&plan, &["PL-4", "over the level 1 group", "sum over: shard"]);
}
