//! Edits of a round of matrices: one of its tasks, the slots between them, or the places of its weights.
//!
//! Law: as of every edit, one thing is changed and the books are kept. Where weights change places, they do so in all
//! tasks of the round on one side of a cut, so that these agree with each other and not with the rest.

use warpweft_base::id::{SlotId, WeightId};
use warpweft_plan::layout::Content;
use warpweft_plan::op::{ExchangeRows, Op, Prepare, Transform, Update};
use warpweft_plan::plan::StepPlan;
use warpweft_testing::plan_books::twin;
use warpweft_testing::random_programs::Draw;

use super::books::{drop_task, duplicate, move_task};
use super::damage::{change_operand, near};
use super::operands::{change_phase, change_subject, lose_operand, slots_of};

/// A round: its weights in their order, and its tasks in T.
pub(crate) struct Round {
    pub(crate) weights: Vec<WeightId>,
    pub(crate) tasks: Vec<usize>,
}

/// All rounds of a plan that a planner made.
pub(crate) fn rounds_of(plan: &StepPlan) -> Vec<Round> {
    let mut rounds: Vec<Round> = Vec::new();
    for (task, found) in plan.tasks.iter().enumerate() {
        let Some(weights) = weights_of_round(&found.op) else { continue };
        match rounds.iter_mut().find(|round| round.weights == weights) {
            Some(round) => round.tasks.push(task),
            None => rounds.push(Round { weights, tasks: vec![task] }),
        }
    }
    rounds
}

/// The weights of the round of which the op is a task, in their order.
fn weights_of_round(op: &Op) -> Option<Vec<WeightId>> {
    match op {
        Op::Prepare(Prepare { states, .. }) => Some(states.iter().map(|state| state.weight).collect()),
        Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(Transform { weights, .. }) => {
            Some(weights.clone())
        }
        Op::Update(Update { states, transformed: Some(_), .. }) => {
            Some(states.iter().map(|state| state.weight).collect())
        }
        _ => None,
    }
}

/// Edits a task of some round, or several of one.
pub(crate) fn change_round(plan: &mut StepPlan, draw: &mut Draw) -> Option<()> {
    match draw.below(12) {
        0 | 1 => return leave_out(plan, draw),
        2 | 3 => return part_ways(plan, draw),
        _ => {}
    }
    let task = one_of(plan, draw, |op| weights_of_round(op).is_some())?;
    match draw.below(10) {
        0 => drop_task(plan, task),
        1 => {
            let at = task + 1 + draw.below(plan.tasks.len() - task);
            duplicate(plan, task, at);
        }
        2 => move_task(plan, task, near(task, draw, plan)),
        3 => change_operand(plan, task, draw)?,
        4 => lose_operand(&mut plan.tasks[task].op, draw)?,
        5 => change_phase(plan, task, draw)?,
        6 => change_subject(plan, task, draw)?,
        7 => take_a_twin(plan, task, draw)?,
        _ => take_another_stage(plan, task, draw)?,
    }
    Some(())
}

fn one_of(plan: &StepPlan, draw: &mut Draw, wanted: impl Fn(&Op) -> bool) -> Option<usize> {
    let all: Vec<usize> = (0..plan.tasks.len()).filter(|task| wanted(&plan.tasks[*task].op)).collect();
    draw.of(&all).copied()
}

/// Leaves an exchange or a transformation out: whoever takes what it makes takes what it found, and waits for what it
/// waited for.
fn leave_out(plan: &mut StepPlan, draw: &mut Draw) -> Option<()> {
    let task = one_of(plan, draw, |op| matches!(op, Op::ExchangeRows(_) | Op::Transform(_)))?;
    let (found, made) = match plan.tasks[task].op {
        Op::ExchangeRows(ExchangeRows { from, to, .. }) | Op::Transform(Transform { from, to, .. }) => {
            (from, to)
        }
        _ => return None,
    };
    let before = plan.tasks[task].waits.clone();
    for later in &mut plan.tasks[task + 1..] {
        slots_of(&mut later.op).into_iter().filter(|slot| **slot == made).for_each(|slot| *slot = found);
        if later.waits.iter().any(|wait| wait.index() == task) {
            later.waits.extend(before.iter().copied());
            later.waits.sort_unstable();
            later.waits.dedup();
        }
    }
    drop_task(plan, task);
    Some(())
}

/// Lets a task name the slot of another stage, or of another round.
fn take_another_stage(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let of_rounds: Vec<(SlotId, usize)> = plan
        .arena
        .entries()
        .filter(|(_, slot)| matches!(slot.content, Content::Round(..)))
        .map(|(id, slot)| (id, slot.region.bytes))
        .collect();
    let bytes = |slot: SlotId| of_rounds.iter().find(|(other, _)| *other == slot).map(|(_, bytes)| *bytes);
    let mut named: Vec<&mut SlotId> = slots_of(&mut plan.tasks[task].op);
    named.retain(|slot| bytes(**slot).is_some());
    let chosen = draw.below(named.len().max(1));
    let slot = named.into_iter().nth(chosen)?;
    let mut others = of_rounds.iter().map(|(other, _)| *other).collect::<Vec<_>>();
    others.retain(|other| other != slot && bytes(*other) == bytes(*slot));
    *slot = *draw.of(&others)?;
    Some(())
}

/// Lets a task, and no other one, name a slot for the same content in other bytes.
fn take_a_twin(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let named: Vec<SlotId> = slots_of(&mut plan.tasks[task].op).iter().map(|slot| **slot).collect();
    let slot = *draw.of(&named)?;
    let twin = twin(plan, slot);
    slots_of(&mut plan.tasks[task].op)
        .into_iter()
        .filter(|named| **named == slot)
        .for_each(|named| *named = twin);
    let bytes = plan.arena.transient_bytes;
    plan.policy.budget.is_none_or(|budget| bytes <= budget).then_some(())
}

/// Puts two weights of a round in each other's place, up to some of its tasks or from it on.
fn part_ways(plan: &mut StepPlan, draw: &mut Draw) -> Option<()> {
    let mut rounds = rounds_of(plan);
    rounds.retain(|round| round.weights.len() > 1);
    let Round { weights, tasks } = draw.of(&rounds)?;
    let one = draw.below(weights.len());
    let others: Vec<usize> = (0..weights.len()).filter(|other| *other != one).collect();
    let other = *draw.of(&others)?;
    let cut = 1 + draw.below(tasks.len() - 1);
    change_places(plan, if draw.one_in(2) { &tasks[..cut] } else { &tasks[cut..] }, one, other);
    Some(())
}

/// Puts the weights at two places of a round in each other's, in some of its tasks.
pub(crate) fn change_places(plan: &mut StepPlan, tasks: &[usize], one: usize, other: usize) {
    for task in tasks {
        match &mut plan.tasks[*task].op {
            Op::Prepare(Prepare { states, .. }) => states.swap(one, other),
            Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(Transform { weights, .. }) => {
                weights.swap(one, other)
            }
            Op::Update(Update { states, .. }) => states.swap(one, other),
            _ => {}
        }
    }
}
