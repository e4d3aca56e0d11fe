//! A plan under construction: stages of tasks, slots without addresses.
//!
//! Law: one stage per call, and a last one for what follows the calls. Inside a stage, sections
//! come in a fixed order; concatenating all of them gives the issue order T. Passes add tasks and
//! slots, some between those of other passes, and never remove or reorder what another pass added.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::layout::{Content, Region, Residency, Slot, Weights};
use crate::model::{BufferSpec, Call};
use crate::op::Op;
use warpweft_base::id::{CallId, SlotId, WeightId};

use super::Policy;

/// Who carries a task, before lanes have numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The compute lane.
    Compute,
    /// The quantize lane.
    Quantize,
    /// The sum lane.
    Sum,
    /// The communicator that gathers.
    Gather,
    /// The communicator that reduces.
    Reduce,
    /// The communicator for what was summed once: levels above the first, and sums over replicas.
    Replicas,
    /// The communicator of collectives between calls.
    Calls,
}

/// The order of work inside a stage.
///
/// Gradients are summed as many calls after their own as the timetable says (`reduce_delay` of the policy,
/// or what `auto` finds), by a reduction that sums or after an exchange that stands at least one call
/// before, so what lands is alive while a call runs beside it. What a reduction summed is accumulated one
/// call further, so that a transposition never stands after an accumulation that waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Section {
    /// Copies of inputs out of staging.
    Inputs,
    /// Slices of shards that are gathered from other replicas at this stage.
    Publish,
    /// Gathers released at this stage.
    Gathers,
    /// Columnwise planes made at this stage.
    Transposes,
    /// Dense copies for this stage's call, or ahead for the next one.
    Dequantize,
    /// Exchanges of what the call before completed, where sums stand more than two calls later and
    /// reductions have a communicator of their own.
    Exchange,
    /// The call.
    Compute,
    /// Copies of outputs into staging.
    Outputs,
    /// Gradients of the call before added to those they are reduced with.
    AddGradients,
    /// Sums of what an earlier stage brought.
    Sum,
    /// What these bring to the next level, and their sums over the replicas.
    Replicas,
    /// Reductions of a call some calls before.
    Reduce,
    /// Sums of what this stage brings.
    SumHere,
    /// What these bring to the next level, and their sums over the replicas.
    ReplicasHere,
    /// Accumulations of what was reduced at the stage before.
    Accumulate,
    /// Everything after the last call, in the order it was added.
    Tail,
}

impl Section {
    const COUNT: usize = 16;

    /// All of them, in order.
    const ALL: [Self; Self::COUNT] = [
        Self::Inputs,
        Self::Publish,
        Self::Gathers,
        Self::Transposes,
        Self::Dequantize,
        Self::Exchange,
        Self::Compute,
        Self::Outputs,
        Self::AddGradients,
        Self::Sum,
        Self::Replicas,
        Self::Reduce,
        Self::SumHere,
        Self::ReplicasHere,
        Self::Accumulate,
        Self::Tail,
    ];
}

/// Where a task stands in a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) stage: usize,
    pub(super) section: Section,
    /// Among the tasks of stage and section.
    pub(super) position: usize,
}

/// Where something is made ahead of its use at `stage`, of what is there from stage `available` on: beside
/// the call before, or as soon as it can be.
pub(super) fn ahead_of(stage: usize, available: usize) -> usize {
    available.max(stage.saturating_sub(1))
}

/// A task before it has a number.
#[derive(Clone, Debug)]
pub(super) struct DraftTask {
    pub(super) op: Op,
    pub(super) subject: String,
    pub(super) carrier: Carrier,
    /// The call before whose end the task must not begin.
    pub(super) release: Option<CallId>,
    pub(super) wire_bytes: usize,
}

/// What one use of one call reads, filled in by the passes one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Supply {
    /// The slot the call will read.
    pub(super) slot: SlotId,
    /// The stage at which its writer is issued, or the last of several.
    pub(super) stage: usize,
    /// Which gather brought it, or what it is made of: the first slot that this gather fills.
    pub(super) gather: SlotId,
}

/// The plan under construction.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    pub(super) calls: &'a [Call],
    pub(super) buffers: &'a [BufferSpec],
    pub(super) weights: &'a Weights,
    pub(super) policy: &'a Policy,
    /// Are gradients added to what the step before left in main grads?
    pub(super) continues: bool,
    /// Does the norm of main grads follow, with an optimizer?
    pub(super) updates: bool,
    /// Shards that are published so far.
    pub(super) published: HashSet<SlotId>,
    slots: Vec<Slot>,
    /// The first slot of every content.
    places: HashMap<Content, SlotId>,
    /// Per call, per use: where it is read from so far.
    pub(super) supplies: Vec<Vec<Option<Supply>>>,
    stages: Vec<[Vec<DraftTask>; Section::COUNT]>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(
        calls: &'a [Call],
        buffers: &'a [BufferSpec],
        weights: &'a Weights,
        policy: &'a Policy,
        residents: Vec<Slot>,
    ) -> Self {
        Self {
            calls,
            buffers,
            weights,
            policy,
            continues: false,
            updates: false,
            published: HashSet::new(),
            places: first_places(&residents),
            slots: residents,
            supplies: calls.iter().map(|call| vec![None; call.uses.len()]).collect(),
            stages: (0..=calls.len()).map(|_| Default::default()).collect(),
        }
    }

    /// Every call with its id and stage.
    pub(super) fn stages_of_calls(&self) -> impl Iterator<Item = (usize, CallId, &'a Call)> + use<'a> {
        self.calls.iter().enumerate().map(|(stage, call)| (stage, CallId::at(stage), call))
    }

    /// The stage after the last call.
    pub(super) fn tail(&self) -> usize {
        self.calls.len()
    }

    /// Adds a task after those of the same stage and section.
    pub(super) fn add(&mut self, stage: usize, section: Section, task: DraftTask) {
        let stage = stage.min(self.tail());
        self.stages[stage][section as usize].push(task);
    }

    /// Every task so far and where it stands, in issue order.
    pub(super) fn tasks(&self) -> impl Iterator<Item = (Place, &DraftTask)> {
        self.stages.iter().enumerate().flat_map(|(stage, sections)| {
            sections.iter().zip(Section::ALL).flat_map(move |(tasks, section)| {
                let place = move |position| Place { stage, section, position };
                tasks.iter().enumerate().map(move |(position, task)| (place(position), task))
            })
        })
    }

    /// Is what calls read of gathered planes made beside the call before? Planes that are gathered on demand
    /// come too late for that.
    pub(super) fn derives_ahead(&self) -> bool {
        self.policy.derive_ahead && !self.policy.prefetch.is_on_demand()
    }

    /// Adds tasks at places, each before the task that stands there now; several at one place in the order in
    /// which they come here.
    pub(super) fn insert(&mut self, added: Vec<(Place, DraftTask)>) {
        let mut by_section: BTreeMap<(usize, Section), Vec<(usize, DraftTask)>> = BTreeMap::new();
        for (Place { stage, section, position }, task) in added {
            by_section.entry((stage, section)).or_default().push((position, task));
        }
        for ((stage, section), added) in by_section {
            let tasks = &mut self.stages[stage][section as usize];
            *tasks = joined(std::mem::take(tasks), added);
        }
    }

    /// A new transient slot; its size follows from its content.
    pub(super) fn transient(&mut self, name: String, content: Content) -> SlotId {
        let bytes = content.bytes(self.weights, |buffer| self.buffers[buffer.index()].bytes());
        let region = Region { offset: 0, bytes };
        let slot = SlotId::at(self.slots.len());
        self.slots.push(Slot { name, content, residency: Residency::Transient, region });
        self.places.entry(content).or_insert(slot);
        slot
    }

    /// The first slot with this content. Residents are complete before any pass runs, so a miss
    /// is a slot of no weight, and the index it returns is refused by the verifier.
    pub(super) fn slot(&self, content: Content) -> SlotId {
        self.known(content).unwrap_or(SlotId::at(usize::MAX))
    }

    /// The first slot with this content, if there is one by now.
    pub(super) fn known(&self, content: Content) -> Option<SlotId> {
        self.places.get(&content).copied()
    }

    /// What a slot is for.
    pub(super) fn content(&self, slot: SlotId) -> Option<Content> {
        self.slots.get(slot.index()).map(|slot| slot.content)
    }

    /// The bytes of a slot.
    pub(super) fn bytes(&self, slot: SlotId) -> usize {
        self.slots.get(slot.index()).map_or(0, |slot| slot.region.bytes)
    }

    /// A weight's name.
    pub(super) fn name(&self, weight: WeightId) -> &'a str {
        let weights: &'a Weights = self.weights;
        &weights.layout(weight).name
    }

    /// All tasks in issue order, and the slots.
    pub(super) fn finish(self) -> (Vec<DraftTask>, Vec<Slot>) {
        let tasks = self.stages.into_iter().flatten().flatten().collect();
        (tasks, self.slots)
    }
}

/// The first slot of every content.
fn first_places(slots: &[Slot]) -> HashMap<Content, SlotId> {
    let mut places = HashMap::with_capacity(slots.len());
    for (position, slot) in slots.iter().enumerate() {
        places.entry(slot.content).or_insert(SlotId::at(position));
    }
    places
}

impl DraftTask {
    /// A task without release and wire.
    pub(super) fn local(op: Op, subject: impl Into<String>, carrier: Carrier) -> Self {
        Self { op, subject: subject.into(), carrier, release: None, wire_bytes: 0 }
    }

    /// A collective that receives `wire_bytes` bytes.
    pub(super) fn collective(
        op: Op,
        subject: impl Into<String>,
        carrier: Carrier,
        wire_bytes: usize,
    ) -> Self {
        Self { op, subject: subject.into(), carrier, release: None, wire_bytes }
    }
}

/// All of `there`, and each of `added` before what stands at its position; those of one position in their order.
fn joined<T>(there: Vec<T>, mut added: Vec<(usize, T)>) -> Vec<T> {
    added.sort_by_key(|(position, _)| *position);
    let mut joined = Vec::with_capacity(there.len() + added.len());
    let mut added = added.into_iter().peekable();
    for (place, one) in there.into_iter().enumerate() {
        while let Some((_, before)) = added.next_if(|(position, _)| *position <= place) {
            joined.push(before);
        }
        joined.push(one);
    }
    joined.extend(added.map(|(_, after)| after));
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inserted_stands_before_what_was_there_and_in_its_order() {
        let added = |list: &[(usize, char)]| joined("abc".chars().collect(), list.to_vec());
        let text = |list: &[(usize, char)]| added(list).into_iter().collect::<String>();
        assert_eq!(text(&[]), "abc");
        assert_eq!(text(&[(1, 'x'), (0, 'y'), (1, 'z'), (0, 'w')]), "ywaxzbc");
        assert_eq!(text(&[(3, 'x'), (2, 'y'), (9, 'z'), (3, 'w')]), "abycxwz");
        assert_eq!(joined(Vec::new(), vec![(5, 'b'), (0, 'a'), (5, 'c')]), ['a', 'b', 'c']);
    }
}
