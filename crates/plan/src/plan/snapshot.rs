//! The plan of a step that copies the state of weights to the host, for a save that training does not wait for.
//!
//! Law: it is the plan of the step with copies before everything else, on a lane of their own, and the fences that
//! follow from these; nothing else of it is another. So a copy waits for nothing, and what overwrites its slot, in
//! the step's tail, waits for it. A snapshot has as many bytes in every plan of a session, for it
//! has copies of slots that all programs share. It is made of a finished plan, whatever that was planned by.

use std::collections::{BTreeMap, HashMap};

use super::dependences::dependences;
use super::fences::fences;
use super::{PlanError, StepPlan, Task, verify};
use crate::layout::{Content, Lane, LaneKind, Region, Residency, Slot, aligned};
use crate::op::{Op, Snapshot};
use warpweft_base::id::{LaneId, SlotId, TaskId, WeightId};
use warpweft_format::Orientation;

impl StepPlan {
    /// The same step, which also takes a snapshot: it copies the state of all weights that train to the host, as it is
    /// when the step begins. A plan that takes one already is returned as it is.
    ///
    /// # Errors
    /// [`PlanError::Unsafe`] for a plan that was edited.
    pub fn with_snapshot(&self) -> Result<Self, PlanError> {
        if self.takes_snapshot {
            return Ok(self.clone());
        }
        let mut plan = self.clone();
        plan.takes_snapshot = true;
        let lane = LaneId::at(plan.lanes.len());
        plan.lanes.push(Lane { id: lane, kind: LaneKind::Snapshot });
        let copies = self.copies(lane);
        let number = |task: TaskId| TaskId::at(task.index() + copies.len());
        let StepPlan { tasks, bounds, .. } = &mut plan;
        // Where there are no tasks, nothing is ever alive.
        let peak = Some(&mut bounds.live_peak).filter(|_| !tasks.is_empty());
        for moved in tasks.iter_mut().filter_map(|task| task.release.as_mut()).chain(peak) {
            *moved = number(*moved);
        }
        plan.tasks.splice(0..0, copies);
        let accesses: Vec<_> = plan.tasks.iter().map(|task| task.op.accesses()).collect();
        let lanes_of: Vec<LaneId> = plan.tasks.iter().map(|task| task.lane).collect();
        let releases: Vec<Option<TaskId>> = plan.tasks.iter().map(|task| task.release).collect();
        let edges = dependences(&accesses, &plan.arena);
        let fences = fences(&lanes_of, plan.lanes.len(), &edges, &releases);
        for ((task, waits), signals) in plan.tasks.iter_mut().zip(fences.waits).zip(fences.signals) {
            (task.waits, task.signals) = (waits, signals);
        }
        plan.events = fences.events;
        verify(&plan)?;
        Ok(plan)
    }

    /// Bytes of the snapshot of a rank that saves all it holds.
    #[must_use]
    pub fn snapshot_bytes(&self) -> usize {
        self.places_in_snapshot().last().map_or(0, |(.., region)| region.end())
    }

    /// Where in the snapshot that a step of this plan takes the copy of every slot lies, by what the slot is for.
    #[must_use]
    pub fn snapshot_layout(&self) -> BTreeMap<Content, Region> {
        let place = |task: &Task| match task.op {
            Op::Snapshot(Snapshot { from, to, .. }) => {
                let Slot { content, region, .. } = self.arena.slot(from);
                Some((*content, Region { offset: to, bytes: region.bytes }))
            }
            _ => None,
        };
        self.tasks.iter().filter_map(place).collect()
    }

    /// The copies, in the order in which the step overwrites what they read.
    fn copies(&self, lane: LaneId) -> Vec<Task> {
        let mut overwritten: HashMap<SlotId, usize> = HashMap::new();
        for (position, task) in self.tasks.iter().enumerate() {
            for (slot, _) in task.op.accesses().into_iter().filter(|(_, access)| access.writes()) {
                overwritten.entry(slot).or_insert(position);
            }
        }
        let mut places = self.places_in_snapshot();
        places.sort_by_key(|(_, slot, _)| (overwritten.get(slot).copied().unwrap_or(usize::MAX), *slot));
        let copy = |(weight, from, place): (WeightId, SlotId, Region)| Task {
            op: Op::Snapshot(Snapshot { weight, from, to: place.offset }),
            subject: self.arena.slot(from).name.clone(),
            lane,
            waits: Vec::new(),
            signals: None,
            collective: None,
            release: None,
            wire_bytes: 0,
        };
        places.into_iter().map(copy).collect()
    }

    /// What is copied, one after the other.
    fn places_in_snapshot(&self) -> Vec<(WeightId, SlotId, Region)> {
        let mut offset = 0;
        let mut places = Vec::new();
        for (id, slot) in self.arena.entries() {
            if let Some(weight) = self.copied_of(slot) {
                let bytes = slot.region.bytes;
                places.push((weight, id, Region { offset, bytes }));
                offset += aligned(bytes);
            }
        }
        places
    }

    /// The weight that trains and whose checkpoint needs the slot.
    fn copied_of(&self, slot: &Slot) -> Option<WeightId> {
        let halves = |weight: &WeightId| self.weights.splits_masters(self.weights.layout(*weight).bucket);
        let weight = match slot.content {
            Content::Master(weight) | Content::MasterRemainder(weight) | Content::State(weight, _) => {
                Some(weight)
            }
            Content::Shard(weight, Orientation::Rowwise) => Some(weight).filter(halves),
            _ => None,
        };
        weight.filter(|weight| slot.residency == Residency::Resident && !self.weights.layout(*weight).frozen)
    }
}
