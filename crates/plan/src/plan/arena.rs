//! Addresses: interval colouring of the transient slots.
//!
//! Law: a slot *lives* from its first to its last access in T. It *holds* its place from its writer's earliest
//! permitted start (after the task before of the lane that paces it, its own but for sums, which the quantize lane
//! paces; the content it reads and its release; what goes on with what an exchange or reduction brought, as a sum over
//! replicas does, starts as early as that; what an exchange brings, after the sum before it) until the compute lane is
//! known to have passed its last access: a transposition on another lane counts as over when the call that consumes its
//! result is issued. Two slots share bytes only if one's hold ends before the other's begins: so sharing never takes
//! back the prefetch it serves, and a late prefetch never stalls a call that does not need it. Only a budget that holds
//! do not fit cuts them back. Squares, of a few bytes and held through backward, lie behind the others, which lie as if
//! there were none, unless that is over the budget. Addresses are found in [`super::packing`]; no layout can beat the
//! live bytes, none that keeps holds the fullest moment of these.

use std::collections::BTreeMap;

use super::dependences::TaskAccesses;
use super::packing::{self, Item, pack};
use crate::layout::{ALIGNMENT, Content, Residency, Slot};
use crate::model::Access;
use warpweft_base::id::{LaneId, SlotId, TaskId};

/// An arena is small enough at one part in so many over its live bytes.
const ENOUGH: usize = 20;

/// First and last access of a slot in T; `None` for a slot nothing accesses.
pub(super) type Life = Option<(usize, usize)>;

/// The life of every slot.
pub(super) fn lives(tasks: &[TaskAccesses], slots: usize) -> Vec<Life> {
    let mut lives: Vec<Life> = vec![None; slots];
    for (position, task) in tasks.iter().enumerate() {
        for (slot, _) in task {
            if let Some(life) = lives.get_mut(slot.index()) {
                *life = Some(life.map_or((position, position), |(first, _)| (first, position)));
            }
        }
    }
    lives
}

/// The hold of every slot: its life, begun at its first writer's earliest permitted start. `paces`: the lane
/// that paces each task, and the compute lane; `brings`: is it a collective?
pub(super) fn holds(
    slots: &[Slot],
    tasks: &[TaskAccesses],
    (paces, compute): (&[LaneId], LaneId),
    brings: &[bool],
    releases: &[Option<TaskId>],
    lives: &[Life],
) -> Vec<Life> {
    let mut holds = lives.to_vec();
    let passed = passed(slots, tasks, paces, compute);
    for (_, last) in holds.iter_mut().flatten() {
        *last = (*last).max(passed[*last].unwrap_or(0));
    }
    let mut last_writer: Vec<Option<usize>> = vec![None; lives.len()];
    let mut last_on_lane: BTreeMap<LaneId, usize> = BTreeMap::new();
    let mut starts: Vec<usize> = Vec::with_capacity(tasks.len());
    let mut goes_on: Vec<bool> = Vec::with_capacity(tasks.len());
    let mut last_sum: Option<usize> = None;
    for (position, accesses) in tasks.iter().enumerate() {
        let lane_before = last_on_lane.insert(paces[position], position);
        let content = accesses.iter().filter(|(_, access)| access.reads());
        let content = content.filter_map(|(slot, _)| last_writer[slot.index()]).max();
        let made_rows = accesses.iter().any(|(slot, access)| access.writes() && has(slots, *slot, is_rows));
        // Rows of a gradient on their way, of what a collective brought or of such rows: their task may begin
        // as early as that.
        let brought = |before: &usize| brings[*before] || goes_on[*before];
        let from = content.filter(|before| made_rows && brought(before));
        goes_on.push(from.is_some());
        // What lands may take the place of what was received before, once that is summed.
        let received = |wanted: fn(Access) -> bool| {
            let mut slots_of = accesses.iter().filter(|(_, access)| wanted(*access));
            slots_of.any(|(slot, _)| {
                has(slots, *slot, |content| matches!(content, Content::ReceivedGradient(..)))
            })
        };
        let summed = last_sum.filter(|_| received(Access::writes)).map_or(0, |sum| sum + 1);
        if received(Access::reads) {
            last_sum = Some(position);
        }
        let released = releases[position].map_or(0, |release| release.index() + 1).max(summed);
        let after = || content.max(lane_before).map_or(0, |before| before + 1);
        let start = from.map_or_else(after, |before| starts[before]).max(released);
        starts.push(start);
        for (slot, access) in accesses {
            if paces[position] != compute
                && let Some((first, _)) = &mut holds[slot.index()]
                && *first == position
            {
                *first = start;
            }
            if access.writes() {
                last_writer[slot.index()] = Some(position);
            }
        }
    }
    holds
}

/// For each task off the compute lane, the first task of that lane after it that reads what it made.
fn passed(slots: &[Slot], tasks: &[TaskAccesses], paces: &[LaneId], compute: LaneId) -> Vec<Option<usize>> {
    let mut next_consumer: Vec<Option<usize>> = vec![None; slots.len()];
    let mut passed = vec![None; tasks.len()];
    for (position, accesses) in tasks.iter().enumerate().rev() {
        if paces[position] == compute {
            for (slot, _) in accesses.iter().filter(|(_, access)| access.reads()) {
                next_consumer[slot.index()] = Some(position);
            }
            continue;
        }
        // What stays, as a main grad does, is read much later by whoever updates weights.
        let is_result =
            |slot: SlotId| slots.get(slot.index()).is_some_and(|slot| slot.residency == Residency::Transient);
        let made = accesses.iter().filter(|(slot, access)| access.writes() && is_result(*slot));
        passed[position] = made.filter_map(|(slot, _)| next_consumer[slot.index()]).min();
    }
    passed
}

fn has(slots: &[Slot], slot: SlotId, wanted: impl Fn(Content) -> bool) -> bool {
    slots.get(slot.index()).is_some_and(|slot| wanted(slot.content))
}

/// Rows of a gradient that are not accumulated yet.
const fn is_rows(content: Content) -> bool {
    matches!(content, Content::ReducedGradient(..) | Content::SummedGradient(..))
}

/// Places every transient slot after `base`; returns the bytes of the transient region.
///
/// Where holds do not fit a budget, they are cut back to lives, and tasks wait for memory instead of the step
/// being refused: first holds of gradients on their way to a reduction, then all. If that does not fit
/// either, they stay as they are.
pub(super) fn place(
    slots: &mut [Slot],
    lives: &[Life],
    holds: &[Life],
    base: usize,
    live: usize,
    budget: Option<usize>,
) -> usize {
    let budget = budget.unwrap_or(usize::MAX);
    let enough = live.saturating_add(live / ENOUGH);
    let all: Vec<usize> = placed(slots, holds).collect();
    let (squares, others): (Vec<usize>, Vec<usize>) =
        all.iter().partition(|slot| matches!(slots[**slot].content, Content::Squares(_)));
    let packed = |of: &[usize], is_cut, limit| pack(&items(of, slots, lives, holds, is_cut), enough, limit);
    let [none, cuts @ ..] = CUTS;
    let behind: usize = squares.iter().map(|slot| aligned(&slots[*slot])).sum();
    let mut found = packed(&others, none, budget.saturating_sub(behind));
    let (mut placed, mut end) = (others, found.bytes);
    if end.saturating_add(behind) <= budget {
        for slot in squares {
            found.begins.push(end);
            placed.push(slot);
            end += aligned(&slots[slot]);
        }
    } else {
        let whole = packed(&all, none, budget);
        let mut cut = cuts
            .into_iter()
            .filter(|_| budget < whole.bytes && live <= budget)
            .map(|is_cut| packed(&all, is_cut, budget));
        found = cut.find(|cut| cut.bytes <= budget).unwrap_or(whole);
        (placed, end) = (all, found.bytes);
    }
    for (slot, begin) in placed.into_iter().zip(found.begins) {
        slots[slot].region.offset = base + begin;
    }
    end
}

/// The least bytes that [`place`] gets along with, if tasks may wait for memory: as a budget they are kept.
pub(super) fn least(slots: &[Slot], lives: &[Life], holds: &[Life]) -> usize {
    let all: Vec<usize> = placed(slots, holds).collect();
    let bytes = CUTS.into_iter().map(|is_cut| packing::least(&items(&all, slots, lives, holds, is_cut)));
    bytes.min().unwrap_or(0)
}

/// Whose holds are cut back to lives.
type Cut = fn(Content) -> bool;

/// What is tried, one after the other: no hold, those of gradients on their way, all.
const CUTS: [Cut; 3] = [|_| false, is_reduced, |_| true];

/// The slots that get addresses.
fn placed<'a>(slots: &'a [Slot], holds: &'a [Life]) -> impl Iterator<Item = usize> + 'a {
    (0..slots.len()).filter(|slot| slots[*slot].residency == Residency::Transient && holds[*slot].is_some())
}

fn aligned(slot: &Slot) -> usize {
    slot.region.bytes.next_multiple_of(ALIGNMENT)
}

/// How large they are and how long they are held.
fn items(of: &[usize], slots: &[Slot], lives: &[Life], holds: &[Life], is_cut: Cut) -> Vec<Item> {
    let item = |slot: &usize| {
        let spans = if is_cut(slots[*slot].content) { lives } else { holds };
        let (from, to) = spans[*slot].unwrap_or_default();
        Item { bytes: aligned(&slots[*slot]), from, to }
    };
    of.iter().map(item).collect()
}

/// A gradient on its way: what is rounded for the wire, and what comes of the reduction.
const fn is_reduced(content: Content) -> bool {
    matches!(
        content,
        Content::WireGradient(..)
            | Content::QuantizedGradient(..)
            | Content::ReceivedGradient(..)
            | Content::PartialGradient(..)
            | Content::ReceivedPartial(..)
            | Content::ReducedGradient(..)
            | Content::SummedGradient(..)
            | Content::BlockGrad(..)
    )
}

/// The fullest moment of T: live transient bytes, the weights' and gradients' share of them, the
/// task, and the live slots then, largest first.
pub(super) struct Peak {
    pub(super) bytes: usize,
    pub(super) weight_bytes: usize,
    pub(super) task: TaskId,
    pub(super) alive: Vec<SlotId>,
}

pub(super) fn peak(slots: &[Slot], lives: &[Life], tasks: usize) -> Peak {
    let mut change = vec![(0isize, 0isize); tasks + 1];
    for (slot, life) in slots.iter().zip(lives) {
        let (Residency::Transient, Some((first, last))) = (slot.residency, life) else { continue };
        let size = slot.region.bytes.next_multiple_of(ALIGNMENT).cast_signed();
        let weight = if slot.content.is_of_a_weight() { size } else { 0 };
        change[*first] = (change[*first].0 + size, change[*first].1 + weight);
        change[*last + 1] = (change[*last + 1].0 - size, change[*last + 1].1 - weight);
    }
    let mut live = (0isize, 0isize);
    let mut best = (0isize, 0isize, 0usize);
    for (position, (all, weight)) in change.iter().enumerate() {
        live = (live.0 + all, live.1 + weight);
        if live.0 > best.0 {
            best = (live.0, live.1, position);
        }
    }
    let at = best.2;
    let is_alive = |slot: &usize| {
        slots[*slot].residency == Residency::Transient
            && lives[*slot].is_some_and(|(first, last)| first <= at && at <= last)
    };
    let mut alive: Vec<usize> = (0..slots.len()).filter(is_alive).collect();
    alive.sort_by_key(|slot| (std::cmp::Reverse(slots[*slot].region.bytes), *slot));
    Peak {
        bytes: best.0.cast_unsigned(),
        weight_bytes: best.1.cast_unsigned(),
        task: TaskId::at(at),
        alive: alive.into_iter().map(SlotId::at).collect(),
    }
}
