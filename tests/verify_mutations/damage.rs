//! One random edit of a finished plan.
//!
//! Law: an edit changes one thing and keeps the books: task numbers, places on communicators and byte counts are stated anew, so that
//! what is left to find is the fault itself and not its traces. Edits of the books are kinds of their own.

use warpweft::format::{ElementType, Orientation};
use warpweft::id::{BucketId, CommSeq, EventId, LaneId, SlotId, TaskId, Version, WeightId};
use warpweft::layout::{ALIGNMENT, Residency};
use warpweft::op::{MasterOperand, Op, Reduction};
use warpweft::plan::StepPlan;

use crate::draw::Draw;

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
    ExchangeOperands,
    LoseOperand,
    ChangePhase,
    ChangeSubject,
    ChangeVersion,
    ChangeNumber,
    ForgetRelease,
}

impl Edit {
    pub(crate) const ALL: [Self; 21] = [
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
        Self::ExchangeOperands,
        Self::LoseOperand,
        Self::ChangePhase,
        Self::ChangeSubject,
        Self::ChangeVersion,
        Self::ChangeNumber,
        Self::ForgetRelease,
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
                let sizes: Vec<usize> = plan.arena.slots.iter().map(|slot| slot.region.bytes).collect();
                let mut slots = slots_of(&mut plan.tasks[task].op);
                let position = draw.below(slots.len());
                let slot = &mut *slots[position];
                let alike: Vec<usize> = (0..sizes.len())
                    .filter(|other| sizes[*other] == sizes[slot.index()] && *other != slot.index())
                    .collect();
                *slot = SlotId::at(*draw.of(&alike)?);
            }
            Self::ExchangeOperands => {
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
                let task = draw.below(plan.tasks.len());
                change_subject(&mut plan, task, draw)?;
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
        }
        recount(&mut plan);
        let mut untouched = original.clone();
        recount(&mut untouched);
        (plan != untouched).then_some(plan)
    }
}

/// Every fence: task and place among its waits.
fn fences(plan: &StepPlan) -> Vec<(usize, usize)> {
    let of =
        |(task, found): (usize, &warpweft::plan::Task)| (0..found.waits.len()).map(move |wait| (task, wait));
    plan.tasks.iter().enumerate().flat_map(of).collect()
}

/// A place up to three tasks away.
fn near(task: usize, draw: &mut Draw, plan: &StepPlan) -> usize {
    let distance = 1 + draw.below(3);
    let there = if draw.one_in(2) { task.saturating_sub(distance) } else { task + distance };
    there.min(plan.tasks.len() - 1)
}

fn signal(plan: &mut StepPlan, task: usize) {
    if plan.tasks[task].signals.is_none() {
        plan.tasks[task].signals = Some(EventId::at(plan.events));
        plan.events += 1;
    }
}

pub(crate) fn drop_task(plan: &mut StepPlan, dropped: usize) {
    plan.tasks.remove(dropped);
    let moved = |task: TaskId| match task.index() {
        at if at == dropped => None,
        at => Some(TaskId::at(at - usize::from(at > dropped))),
    };
    for task in &mut plan.tasks {
        task.waits = task.waits.iter().filter_map(|wait| moved(*wait)).collect();
        task.release = task.release.and_then(moved);
    }
    renumber_collectives(plan);
}

/// A copy of `task` at place `at` behind it. It waits for what the task waits for and signals nothing.
fn duplicate(plan: &mut StepPlan, task: usize, at: usize) {
    let copy = warpweft::plan::Task { signals: None, ..plan.tasks[task].clone() };
    plan.tasks.insert(at, copy);
    let moved = |task: TaskId| TaskId::at(task.index() + usize::from(task.index() >= at));
    for task in &mut plan.tasks {
        task.waits.iter_mut().for_each(|wait| *wait = moved(*wait));
        task.release = task.release.map(moved);
    }
    renumber_collectives(plan);
}

/// Takes the task from one place in T to another; who waits for whom stays.
fn move_task(plan: &mut StepPlan, from: usize, to: usize) {
    let mut places: Vec<usize> = (0..plan.tasks.len()).collect();
    let place = places.remove(from);
    places.insert(to, place);
    let task = plan.tasks.remove(from);
    plan.tasks.insert(to, task);
    let moved = |task: TaskId| TaskId::at(places.iter().position(|old| *old == task.index()).unwrap());
    for task in &mut plan.tasks {
        task.waits.iter_mut().for_each(|wait| *wait = moved(*wait));
        task.release = task.release.map(moved);
    }
    renumber_collectives(plan);
}

fn renumber_collectives(plan: &mut StepPlan) {
    let mut next = vec![0; plan.lanes.len()];
    for task in &mut plan.tasks {
        if let Some((_, sequence)) = &mut task.collective {
            *sequence = CommSeq::new(next[task.lane.index()]);
            next[task.lane.index()] += 1;
        }
    }
}

/// Every slot an op names.
fn slots_of(op: &mut Op) -> Vec<&mut SlotId> {
    match op {
        Op::Copy { from, to }
        | Op::GatherRecords { from, to }
        | Op::RoundGradient { from, to, .. }
        | Op::Transpose { from, to, .. } => vec![from, to],
        Op::AllGather { parts } => parts.iter_mut().flat_map(|part| [&mut part.from, &mut part.to]).collect(),
        Op::ReduceScatter { parts, .. } => {
            parts.iter_mut().flat_map(|part| [&mut part.from, &mut part.to]).collect()
        }
        Op::AddGradient { from, into, .. } | Op::Accumulate { from, into, .. } => vec![from, into],
        Op::ClearFault { fault } => vec![fault],
        Op::ZeroPadding { gradient, .. } => vec![gradient],
        Op::Compute { fault, operands, .. } => {
            std::iter::once(fault).chain(operands.iter_mut().map(|operand| &mut operand.slot)).collect()
        }
        Op::PartialAmax { masters, block_amax, tensor_amax, vote, .. } => {
            masters.iter_mut().chain([block_amax, tensor_amax]).chain(vote).collect()
        }
        Op::AllReduce { pairs, .. } => pairs.iter_mut().flat_map(|(from, to)| [from, to]).collect(),
        Op::FusedScale { block_amax, tensor_amax, encode, tensor_scale, shards, vote, .. } => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            [block_amax, tensor_amax, encode, tensor_scale].into_iter().chain(shards).chain(vote).collect()
        }
        Op::DelayedScale { history, scale, tensor_scale, vote, .. } => {
            [scale, tensor_scale].into_iter().chain(history).chain(vote).collect()
        }
        Op::RecordAmax { tensor_amax, history, vote, .. } => {
            [tensor_amax, history].into_iter().chain(vote).collect()
        }
        Op::PartialCast { masters, encode, shards, vote, .. } => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            masters.iter_mut().chain(encode).chain(shards).chain(vote).collect()
        }
        Op::Dequantize { from, tensor_scale, to, .. } => [from, to].into_iter().chain(tensor_scale).collect(),
        Op::GradNorm { main_grads, fault, record } => {
            main_grads.iter_mut().map(|(_, slot)| slot).chain([fault, record]).collect()
        }
        Op::Vote { records, optimizer_step, loss_scale, vote } => {
            vec![records, optimizer_step, loss_scale, vote]
        }
        Op::Adam { states, vote, learning_rate, .. } => {
            let mut slots = vec![vote, learning_rate];
            for state in states {
                match &mut state.master {
                    MasterOperand::Whole(master) => slots.push(master),
                    MasterOperand::Split { shard, remainder } => slots.extend([shard, remainder]),
                }
                slots.extend([&mut state.exp_avg, &mut state.exp_avg_sq, &mut state.main_grad]);
            }
            slots
        }
        other => panic!("no operands are known of {}", other.name()),
    }
}

/// Takes one of several operands away, or one that may be absent.
fn lose_operand(op: &mut Op, draw: &mut Draw) -> Option<()> {
    fn one<T>(list: &mut Vec<T>, draw: &mut Draw) -> Option<()> {
        (!list.is_empty()).then(|| drop(list.remove(draw.below(list.len()))))
    }
    let absent = |slot: &mut Option<SlotId>| slot.take().map(drop);
    match op {
        Op::Compute { operands, .. } => one(operands, draw),
        Op::PartialAmax { masters, vote, .. } => absent(vote).or_else(|| one(masters, draw)),
        Op::AllReduce { pairs, .. } => one(pairs, draw),
        Op::FusedScale { shards, vote, .. } if draw.one_in(2) || vote.is_none() => one(shards, draw),
        Op::FusedScale { vote, .. } | Op::RecordAmax { vote, .. } => absent(vote),
        Op::DelayedScale { history, vote, .. } => {
            if draw.one_in(2) {
                absent(history)
            } else {
                absent(vote)
            }
        }
        Op::PartialCast { masters, encode, shards, vote, .. } => match draw.below(4) {
            0 => one(masters, draw),
            1 => absent(encode),
            2 => absent(vote),
            _ => one(shards, draw),
        },
        Op::Dequantize { tensor_scale, .. } => absent(tensor_scale),
        Op::AllGather { parts } if parts.len() > 1 => one(parts, draw),
        Op::ReduceScatter { parts, .. } if parts.len() > 1 => one(parts, draw),
        Op::GradNorm { main_grads, .. } => one(main_grads, draw),
        Op::Adam { states, .. } => one(states, draw),
        _ => None,
    }
}

/// Changes what an op does with its operands: which call runs, what begins a sum, which side of a weight, what is combined how.
fn change_phase(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let calls: Vec<_> = plan
        .tasks
        .iter()
        .filter_map(|task| match task.op {
            Op::Compute { call, .. } => Some(call),
            _ => None,
        })
        .collect();
    let other = |element| if element == ElementType::F32 { ElementType::Bf16 } else { ElementType::F32 };
    let turned = |orientation: &mut Orientation| {
        *orientation = match orientation {
            Orientation::Rowwise => Orientation::Columnwise,
            Orientation::Columnwise => Orientation::Rowwise,
        };
    };
    match &mut plan.tasks[task].op {
        Op::Compute { call, .. } => *call = *draw.of(&calls)?,
        Op::Accumulate { first, .. } => *first = !*first,
        Op::AllGather { parts } => {
            let part = draw.below(parts.len());
            turned(&mut parts[part].orientation);
        }
        Op::ReduceScatter { element, .. } => *element = other(*element),
        Op::Dequantize { orientation, values, .. } => match draw.below(2) {
            0 => turned(orientation),
            _ => *values = other(*values),
        },
        Op::AllReduce { reduction, .. } => {
            *reduction = if *reduction == Reduction::Sum { Reduction::Max } else { Reduction::Sum };
        }
        Op::PartialCast { shards, .. } | Op::FusedScale { shards, .. } => {
            let shard = draw.below(shards.len());
            turned(&mut shards[shard].orientation);
        }
        _ => {
            if !draw.one_in(8) {
                return None;
            }
            plan.micro_batches = 1 + draw.below(4) as u32;
        }
    }
    Some(())
}

/// Lets an op speak of another weight or bucket of the plan; its operands stay.
fn change_subject(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let weights = plan.weights.layouts.len();
    let buckets = plan.weights.buckets.len();
    let StepPlan { tasks, weights: layouts, .. } = plan;
    // Of another shape the op would not fit its slots, which every backend refuses when it binds the plan.
    let mut rename = |weight: &mut WeightId| {
        let other = WeightId::at(draw.below(weights));
        let (mine, theirs) = (layouts.layout(*weight), layouts.layout(other));
        let fits = (mine.shard, mine.format) == (theirs.shard, theirs.format);
        fits.then(|| *weight = other)
    };
    match &mut tasks[task].op {
        Op::AllGather { parts } => return rename(&mut parts.first_mut()?.weight),
        Op::ReduceScatter { parts, .. } => return rename(&mut parts.first_mut()?.weight),
        Op::ZeroPadding { weight, .. }
        | Op::Transpose { weight, .. }
        | Op::Dequantize { weight, .. }
        | Op::RoundGradient { weight, .. }
        | Op::AddGradient { weight, .. }
        | Op::Accumulate { weight, .. } => return rename(weight),
        Op::PartialAmax { bucket, .. }
        | Op::DelayedScale { bucket, .. }
        | Op::RecordAmax { bucket, .. }
        | Op::FusedScale { bucket, .. }
        | Op::PartialCast { bucket, .. }
        | Op::Adam { bucket, .. } => *bucket = BucketId::at(draw.below(buckets)),
        _ => return None,
    }
    Some(())
}

/// States the byte counts anew: transient bytes between first and last access, and where their sum is largest.
pub(crate) fn recount(plan: &mut StepPlan) {
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; plan.arena.slots.len()];
    for (position, task) in plan.tasks.iter().enumerate() {
        for (slot, _) in task.op.accesses() {
            let life = lives[slot.index()].get_or_insert((position, position));
            life.1 = position;
        }
    }
    let mut alive = vec![0usize; plan.tasks.len()];
    for (slot, life) in plan.arena.slots.iter().zip(lives) {
        if let (Residency::Transient, Some((first, last))) = (slot.residency, life) {
            let bytes = slot.region.bytes.next_multiple_of(ALIGNMENT);
            alive[first..=last].iter_mut().for_each(|alive| *alive += bytes);
        }
    }
    let (bytes, peak) =
        alive.iter().enumerate().map(|(position, bytes)| (*bytes, position)).max().unwrap_or_default();
    plan.bounds.live_bytes = bytes;
    plan.bounds.live_weight_bytes = 0;
    plan.bounds.live_peak = TaskId::at(peak);
    plan.bounds.resident_bytes = plan.arena.resident_bytes;
    plan.bounds.transient_bytes = plan.arena.transient_bytes;
    plan.bounds.wire_bytes = plan.tasks.iter().map(|task| task.wire_bytes).sum();
}
