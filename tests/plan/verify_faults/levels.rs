//! PL-4 where ranks sum in levels: every level takes what the one before left, of all ranks and of each once.

use warpweft_base::id::{LevelId, SlotId};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::{
    Accumulate, AllReduce, ExchangeGradient, Op, ReducePart, SumGradient, SumTarget, WireType,
};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};
use warpweft_plan::policy::{Reduce, ReduceDtype};

use super::edit::{
    position, recount, reduced, refused, relocate, remove, repeat, slot, spread, summed, twin, weight,
};
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

/// The sum of replicated weights at a level of the world.
fn sum_of_all(plan: &StepPlan, at: u32) -> usize {
    let level = Group::WorldLevel(LevelId::new(at));
    position(plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { group, .. }) if *group == level))
}

fn all_reduce(plan: &mut StepPlan, task: usize) -> &mut AllReduce {
    match &mut plan.tasks[task].op {
        Op::AllReduce(op) => op,
        other => panic!("a {} is no all-reduce", other.name()),
    }
}

#[test]
fn gradients_of_replicated_weights_are_summed_once_at_each_level_of_the_world() {
    let mut plan = training();
    let norm = weight(&plan, "norm");
    let sums: Vec<usize> = (0..3).map(|at| sum_of_all(&plan, at)).collect();
    assert!(sums.is_sorted());
    let of_world = |op: &Op| matches!(op, Op::AllReduce(op) if op.group.is_world());
    assert!(!plan.tasks.iter().any(|task| of_world(&task.op) && task.subject.contains("replicated")));
    let through = sums.iter().map(|task| all_reduce(&mut plan, *task).pairs[0]).collect::<Vec<_>>();
    let through: Vec<_> =
        through.into_iter().map(|(from, to)| (content(&plan, from), content(&plan, to))).collect();
    let [first, second] = [0, 1].map(|level| Content::BlockGrad(norm, LevelId::new(level)));
    let [own, main] = [Content::LocalGrad(norm), Content::MainGrad(norm)];
    assert_eq!(through, [(own, first), (first, second), (second, main)]);
}

/// A library that sums has an order of its own, which blocks do not change.
#[test]
fn gradients_of_replicated_weights_are_summed_at_once_where_a_library_sums() {
    let mesh = training().weights.mesh;
    let policy = Policy { reduce: Reduce::Nccl, ..policy() };
    let plan = StepPlan::build(&accumulating_program(2), &policy, mesh).unwrap();
    verify(&plan).unwrap();
    let groups: Vec<Group> = plan.tasks.iter().filter_map(|task| task.op.group()).collect();
    assert!(!groups.iter().any(|group| matches!(group, Group::WorldLevel(_))), "{groups:?}");
}

/// PL-4. Over other ranks, or at another level's turn, ranks are counted twice or not at all.
#[test]
fn sums_of_replicated_weights_over_the_wrong_ranks_are_refused() {
    let of_world = |at| Group::WorldLevel(LevelId::new(at));
    let wrong = [(0, of_world(1)), (0, Group::World), (1, of_world(0)), (1, of_world(2)), (2, of_world(1))];
    for (at, wrong) in wrong {
        let mut plan = training();
        let task = sum_of_all(&plan, at);
        all_reduce(&mut plan, task).group = wrong;
        recount(&mut plan);
        let needs =
            if at == 0 { "the ranks of one block to sum" } else { "the ranks of the next level to sum" };
        let error = refused(&plan, &["PL-4", needs]);
        assert!(matches!(error, VerifyError::Gradient { .. }));
    }
}

/// PL-4. A level that is left out leaves its ranks out.
#[test]
fn a_level_of_the_world_that_is_left_out_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let [first, second, third] = [0, 1, 2].map(|at| sum_of_all(&plan, at));
    let below = all_reduce(&mut plan, second).pairs.clone();
    for (pair, (from, _)) in all_reduce(&mut plan, third).pairs.iter_mut().zip(&below) {
        pair.0 = *from;
    }
    refused(&plan, &["PL-4", "the ranks of the next level to sum", "of one block of level 0"]);
    let mut plan = training();
    spread(&mut plan);
    let into: Vec<SlotId> = all_reduce(&mut plan, third).pairs.iter().map(|(_, to)| *to).collect();
    for (pair, to) in all_reduce(&mut plan, first).pairs.iter_mut().zip(into) {
        pair.1 = to;
    }
    refused(&plan, &["PL-6", "of one block of level 0", "declared for other content"]);
}

/// PL-4. A level that is summed a second time counts its ranks twice.
#[test]
fn a_level_of_the_world_that_is_summed_twice_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let first = sum_of_all(&plan, 0);
    repeat(&mut plan, first);
    let (_, made) = all_reduce(&mut plan, first).pairs[0];
    let again = twin(&mut plan, made);
    all_reduce(&mut plan, first + 1).pairs = vec![(made, again)];
    refused(&plan, &["PL-4", "the ranks of the next level to sum", "over each level of the world once"]);
}

/// PL-4. What a block's slot held before its sum is made is no sum of it.
#[test]
fn a_stale_sum_of_a_block_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let [first, second] = [0, 1].map(|at| sum_of_all(&plan, at));
    relocate(&mut plan, second, first);
    refused(&plan, &["PL-4", "needs the gradient sum of a block of the level before"]);
    let mut plan = training();
    spread(&mut plan);
    let norm = weight(&plan, "norm");
    let made = slot(&plan, Content::BlockGrad(norm, LevelId::new(0)));
    let other = twin(&mut plan, made);
    all_reduce(&mut plan, second).pairs[0].0 = other;
    refused(&plan, &["PL-4", "over the ranks of one block first"]);
}

/// PL-4. A block that was summed before its ranks added up all of a step lacks what came after.
#[test]
fn a_sum_of_a_block_from_before_the_last_contribution_is_refused() {
    let mut plan = training();
    spread(&mut plan);
    let norm = weight(&plan, "norm");
    let adds = |op: &Op| matches!(op, Op::Accumulate(Accumulate { weight, .. }) if *weight == norm);
    let last = plan.tasks.iter().rposition(|task| adds(&task.op)).unwrap();
    let first = sum_of_all(&plan, 0);
    relocate(&mut plan, first, last);
    let error = refused(&plan, &["PL-4", "it was added to slot", "no all-reduce after that"]);
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}
