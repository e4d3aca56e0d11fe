//! One random edit of a finished plan.
//!
//! Law: an edit changes one thing and keeps the books: task numbers, places on communicators and byte counts
//! are stated anew, so that what is left to find is the fault itself and not its traces. Edits of the books
//! are kinds of their own.

use warpweft_base::id::{CommSeq, LaneId, SlotId, TaskId, Version};
use warpweft_plan::layout::{ALIGNMENT, Content, Residency, Slot};
use warpweft_plan::model::{Access, Accumulation};
use warpweft_plan::op::{Op, Update};
use warpweft_plan::plan::StepPlan;
use warpweft_testing::plan_books::{recount, renumber_collectives, twin};
use warpweft_testing::random_programs::Draw;

use super::books::{drop_task, duplicate, move_task, signal};
use super::operands::{
    change_phase, change_subject, lose_operand, run_as_closure, run_as_exchange, slots_of,
};
use super::rounds::change_round;

/// What an edit does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edit {
    DropFence,
    RedirectFence,
    DropEvent,
    ShareEvent,
    SwapSlots,
    MoveSlot,
    ShrinkSlot,
    ShrinkRing,
    DropTask,
    DuplicateTask,
    MoveTask,
    ReorderCollective,
    ChangeLane,
    ChangeOperand,
    CollectiveOperands,
    LoseOperand,
    ChangePhase,
    ChangeSubject,
    ChangeVersion,
    ChangeNumber,
    ForgetRelease,
    ChangePart,
    UseTwin,
    ChangeOptimizer,
    ChangeCollectiveCall,
    ChangeRound,
}

impl Edit {
    pub(crate) const ALL: [Self; 26] = [
        Self::DropFence,
        Self::RedirectFence,
        Self::DropEvent,
        Self::ShareEvent,
        Self::SwapSlots,
        Self::MoveSlot,
        Self::ShrinkSlot,
        Self::ShrinkRing,
        Self::DropTask,
        Self::DuplicateTask,
        Self::MoveTask,
        Self::ReorderCollective,
        Self::ChangeLane,
        Self::ChangeOperand,
        Self::CollectiveOperands,
        Self::LoseOperand,
        Self::ChangePhase,
        Self::ChangeSubject,
        Self::ChangeVersion,
        Self::ChangeNumber,
        Self::ForgetRelease,
        Self::ChangePart,
        Self::UseTwin,
        Self::ChangeOptimizer,
        Self::ChangeCollectiveCall,
        Self::ChangeRound,
    ];

    /// Does the edit touch nothing but what a plan says about itself? It may do no harm then.
    pub(crate) const fn is_about_books(self) -> bool {
        matches!(self, Self::ChangeNumber)
    }

    /// Applies the edit somewhere; `None` where the plan has nothing of the kind, or nothing changed.
    pub(crate) fn apply(self, original: &StepPlan, draw: &mut Draw) -> Option<StepPlan> {
        let mut plan = original.clone();
        match self {
            Self::DropFence => {
                let (task, wait) = *draw.of(&fences(&plan))?;
                plan.tasks[task].waits.remove(wait);
            }
            Self::RedirectFence => {
                let (task, wait) = *draw.of(&fences(&plan))?;
                // Mostly to a neighbour of the task waited for, where a mistake is hardest to see.
                let found = plan.tasks[task].waits[wait].index();
                let other =
                    if draw.one_in(4) { draw.below(plan.tasks.len()) } else { near(found, draw, &plan) };
                signal(&mut plan, other);
                plan.tasks[task].waits[wait] = TaskId::at(other);
            }
            Self::DropEvent => {
                let signalling: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| plan.tasks[*task].signals.is_some()).collect();
                plan.tasks[*draw.of(&signalling)?].signals = None;
            }
            Self::ShareEvent => {
                let (one, other) = (draw.below(plan.tasks.len()), draw.below(plan.tasks.len()));
                plan.tasks[one].signals = plan.tasks[other].signals;
            }
            Self::SwapSlots => {
                let transient: Vec<SlotId> = plan.transient().collect();
                let (one, other) = (draw.of(&transient)?.index(), draw.of(&transient)?.index());
                let slots = &mut plan.arena.slots;
                let offset = slots[one].region.offset;
                slots[one].region.offset = std::mem::replace(&mut slots[other].region.offset, offset);
            }
            Self::MoveSlot => {
                let transient: Vec<SlotId> = plan.transient().collect();
                let (one, other) = (draw.of(&transient)?.index(), draw.of(&transient)?.index());
                plan.arena.slots[one].region.offset = plan.arena.slots[other].region.offset;
            }
            Self::ShrinkSlot => {
                let slot = draw.below(plan.arena.slots.len());
                let bytes = &mut plan.arena.slots[slot].region.bytes;
                *bytes = bytes.saturating_sub(draw.among(&[1, 4, ALIGNMENT, 10 * ALIGNMENT]));
            }
            Self::ShrinkRing => {
                let bytes = &mut plan.arena.transient_bytes;
                *bytes = bytes.saturating_sub(ALIGNMENT * (1 + draw.below(8)));
            }
            Self::DropTask => {
                let task = draw.below(plan.tasks.len());
                drop_task(&mut plan, task);
            }
            Self::DuplicateTask => {
                let task = draw.below(plan.tasks.len());
                let at = task + 1 + if draw.one_in(2) { 0 } else { draw.below(plan.tasks.len() - task) };
                duplicate(&mut plan, task, at);
            }
            Self::MoveTask => {
                let from = draw.below(plan.tasks.len());
                let to = if draw.one_in(4) { draw.below(plan.tasks.len()) } else { near(from, draw, &plan) };
                move_task(&mut plan, from, to);
            }
            Self::ReorderCollective => {
                let collectives: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| plan.tasks[*task].collective.is_some()).collect();
                let (from, to) = (*draw.of(&collectives)?, *draw.of(&collectives)?);
                move_task(&mut plan, from, to);
            }
            Self::ChangeLane => {
                let task = draw.below(plan.tasks.len());
                plan.tasks[task].lane = LaneId::at(draw.below(plan.lanes.len()));
                renumber_collectives(&mut plan);
            }
            Self::ChangeOperand => {
                let task = draw.below(plan.tasks.len());
                change_operand(&mut plan, task, draw)?;
            }
            Self::CollectiveOperands => {
                let sizes: Vec<usize> = plan.arena.slots.iter().map(|slot| slot.region.bytes).collect();
                let (one, other) = (draw.below(plan.tasks.len()), draw.below(plan.tasks.len()));
                let named: Vec<SlotId> =
                    slots_of(&mut plan.tasks[one].op).iter().map(|slot| **slot).collect();
                let first = *draw.of(&named)?;
                let alike: Vec<SlotId> = slots_of(&mut plan.tasks[other].op)
                    .iter()
                    .map(|slot| **slot)
                    .filter(|slot| sizes[slot.index()] == sizes[first.index()] && *slot != first)
                    .collect();
                let second = *draw.of(&alike)?;
                for task in if one == other { vec![one] } else { vec![one, other] } {
                    for slot in slots_of(&mut plan.tasks[task].op) {
                        *slot = if *slot == first {
                            second
                        } else if *slot == second {
                            first
                        } else {
                            *slot
                        };
                    }
                }
            }
            Self::LoseOperand => {
                let task = draw.below(plan.tasks.len());
                lose_operand(&mut plan.tasks[task].op, draw)?;
            }
            Self::ChangePhase => {
                let task = draw.below(plan.tasks.len());
                change_phase(&mut plan, task, draw)?;
            }
            Self::ChangeSubject => {
                // Few tasks have another subject that fits, so several are tried.
                (0..16).find(|_| {
                    let task = draw.below(plan.tasks.len());
                    change_subject(&mut plan, task, draw).is_some() && plan != *original
                })?;
            }
            Self::ChangeVersion => {
                let shifted = |version: Version| {
                    if version == Version::new(0) { Version::new(1) } else { Version::new(0) }
                };
                match draw.below(5) {
                    0 => plan.entry.masters = shifted(plan.entry.masters),
                    1 => plan.entry.shards = plan.entry.shards.map(shifted),
                    2 => plan.exit.masters = shifted(plan.exit.masters),
                    3 => plan.exit.shards = plan.exit.shards.map(shifted),
                    _ => plan.exit.shards = None,
                }
            }
            Self::ChangeNumber => {
                let collectives: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| plan.tasks[*task].collective.is_some()).collect();
                let (_, sequence) = plan.tasks[*draw.of(&collectives)?].collective.as_mut()?;
                *sequence = CommSeq::new(draw.below(collectives.len()) as u32);
            }
            Self::ForgetRelease => {
                let released: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| plan.tasks[*task].release.is_some()).collect();
                let task = *draw.of(&released)?;
                let release = plan.tasks[task].release.take();
                plan.tasks[task].waits.retain(|wait| Some(*wait) != release);
            }
            Self::ChangePart => {
                let parts =
                    [Accumulation::Whole, Accumulation::First, Accumulation::Next, Accumulation::Last];
                plan.accumulation = draw.among(&parts);
            }
            Self::UseTwin => {
                let is_sum =
                    |slot: &Slot| matches!(slot.content, Content::MainGrad(_) | Content::LocalGrad(_));
                // Half of them where gradients are accumulated.
                let wanted = draw.one_in(2);
                let of =
                    |slot: &Slot| if wanted { is_sum(slot) } else { slot.residency == Residency::Transient };
                let slots: Vec<SlotId> =
                    plan.arena.entries().filter(|(_, slot)| of(slot)).map(|(id, _)| id).collect();
                let slot = *draw.of(&slots)?;
                let twin = twin(&mut plan, slot);
                let bytes = plan.arena.transient_bytes;
                plan.policy.budget.is_none_or(|budget| bytes <= budget).then_some(())?;
                let from = if draw.one_in(2) { 0 } else { draw.below(plan.tasks.len()) };
                for task in &mut plan.tasks[from..] {
                    slots_of(&mut task.op)
                        .into_iter()
                        .filter(|named| **named == slot)
                        .for_each(|named| *named = twin);
                }
            }
            // A task that updates weights, of which a plan has few: Adam's, or one of the custom optimizer.
            Self::ChangeOptimizer => {
                let updates = |op: &Op| matches!(op, Op::Adam(_) | Op::Update(_));
                let all: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| updates(&plan.tasks[*task].op)).collect();
                let task = *draw.of(&all)?;
                match draw.below(8) {
                    0 => drop_task(&mut plan, task),
                    1 => duplicate(&mut plan, task, task + 1),
                    2 => move_task(&mut plan, task, near(task, draw, original)),
                    3 => change_operand(&mut plan, task, draw)?,
                    4 => lose_operand(&mut plan.tasks[task].op, draw)?,
                    5 => change_phase(&mut plan, task, draw)?,
                    6 => update_nothing(&mut plan, task)?,
                    _ => change_subject(&mut plan, task, draw)?,
                }
            }
            // A task in which ranks give each other a buffer: few plans have many.
            Self::ChangeCollectiveCall => {
                let exchanges = |op: &Op| matches!(op, Op::CollectiveCall(_));
                let all: Vec<usize> =
                    (0..plan.tasks.len()).filter(|task| exchanges(&plan.tasks[*task].op)).collect();
                let task = *draw.of(&all)?;
                match draw.below(10) {
                    0 => drop_task(&mut plan, task),
                    1 => {
                        let at = task + 1 + draw.below(plan.tasks.len() - task);
                        duplicate(&mut plan, task, at);
                    }
                    2 => move_task(&mut plan, task, near(task, draw, original)),
                    3 => move_task(&mut plan, task, before_what_it_gives(original, task)?),
                    4 => move_task(&mut plan, task, after_who_takes_it(original, task)?),
                    5 => change_operand(&mut plan, task, draw)?,
                    6 => run_as_closure(&mut plan, task)?,
                    7 => run_as_exchange(&mut plan, task, draw)?,
                    _ => change_phase(&mut plan, task, draw)?,
                }
            }
            // Tasks that make matrices whole, or need them so: few plans have any.
            Self::ChangeRound => change_round(&mut plan, draw)?,
        }
        recount(&mut plan);
        let mut untouched = original.clone();
        recount(&mut untouched);
        (plan != untouched).then_some(plan)
    }
}

/// Lets an op name another slot of the same size.
pub(crate) fn change_operand(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let sizes: Vec<usize> = plan.arena.slots.iter().map(|slot| slot.region.bytes).collect();
    let mut slots = slots_of(&mut plan.tasks[task].op);
    let position = draw.below(slots.len());
    let slot = &mut *slots[position];
    let alike: Vec<usize> = (0..sizes.len())
        .filter(|other| sizes[*other] == sizes[slot.index()] && *other != slot.index())
        .collect();
    *slot = SlotId::at(*draw.of(&alike)?);
    Some(())
}

/// Runs the custom optimizer once more, on no weights.
fn update_nothing(plan: &mut StepPlan, task: usize) -> Option<()> {
    if !matches!(plan.tasks[task].op, Op::Update(_)) {
        return None;
    }
    duplicate(plan, task, task + 1);
    match &mut plan.tasks[task + 1].op {
        Op::Update(Update { states, transformed, .. }) => {
            states.clear();
            *transformed = None;
        }
        _ => return None,
    }
    Some(())
}

/// The place of the last task before `task` that writes what this reads.
fn before_what_it_gives(plan: &StepPlan, task: usize) -> Option<usize> {
    let read: Vec<SlotId> = accessed(plan, task, |access| access.reads());
    let writes = |other: &usize| {
        accessed(plan, *other, |access| access.writes()).iter().any(|slot| read.contains(slot))
    };
    (0..task).rev().find(writes)
}

/// The place of the first task after `task` that reads what this writes.
fn after_who_takes_it(plan: &StepPlan, task: usize) -> Option<usize> {
    let written: Vec<SlotId> = accessed(plan, task, |access| access.writes());
    let reads = |other: &usize| {
        accessed(plan, *other, |access| access.reads()).iter().any(|slot| written.contains(slot))
    };
    (task + 1..plan.tasks.len()).find(reads)
}

fn accessed(plan: &StepPlan, task: usize, wanted: impl Fn(Access) -> bool) -> Vec<SlotId> {
    let accesses = plan.tasks[task].op.accesses().into_iter();
    accesses.filter(|(_, access)| wanted(*access)).map(|(slot, _)| slot).collect()
}

/// Every fence: task and place among its waits.
fn fences(plan: &StepPlan) -> Vec<(usize, usize)> {
    let of = |(task, found): (usize, &warpweft_plan::plan::Task)| {
        (0..found.waits.len()).map(move |wait| (task, wait))
    };
    plan.tasks.iter().enumerate().flat_map(of).collect()
}

/// A place up to three tasks away.
pub(crate) fn near(task: usize, draw: &mut Draw, plan: &StepPlan) -> usize {
    let distance = 1 + draw.below(3);
    let there = if draw.one_in(2) { task.saturating_sub(distance) } else { task + distance };
    there.min(plan.tasks.len() - 1)
}
