//! PL-9: what a plan copies for a save is the whole state, as it was when the step began.
//!
//! Law: a plan that takes a snapshot copies, of every weight that trains, everything from which a checkpoint's values
//! are made, each slot once and into bytes of its own; any other plan copies nothing. What is to be copied follows
//! from what resident slots are declared for.

use super::{Held, Run, Verdict, VerifyError};
use crate::layout::{ALIGNMENT, Content, MAX_ARENA, Region, Residency, Slot};
use crate::op::Snapshot;
use warpweft_base::id::{SlotId, TaskId, WeightId};
use warpweft_format::Orientation;

impl Run<'_> {
    pub(super) fn snapshot(&mut self, task: TaskId, op: &Snapshot) -> Verdict<()> {
        let Snapshot { weight, from, to: offset } = *op;
        let declared = self.plan.arena.slot(from);
        let to = Region { offset, bytes: declared.region.bytes };
        if self.saved_of(declared) != Some(weight) || !self.plan.takes_snapshot {
            let needs = format!(
                "a plan that takes a snapshot, and a resident slot of which a checkpoint of `{}` is made",
                self.name(weight)
            );
            return self.wrong_state(task, from, needs, "copy state alone, in a plan that says so");
        }
        let needs: Held = self.initial(declared);
        if *self.slots.held(from) != needs {
            let needs = format!("{}, as the step found it", needs.describe(self.plan));
            let remedy = "copy it before the step changes it, or the save would be of two steps";
            return self.wrong_state(task, from, needs, remedy);
        }
        if self.copied.contains_key(&from) {
            return Err(Box::new(VerifyError::Edge {
                subject: self.plan.describe(task),
                needs: format!("to be the one copy of slot `{}`", self.slot_name(from)),
                finds: "an earlier task copied it".into(),
                remedy: "copy every slot once".into(),
            }));
        }
        if offset > MAX_ARENA - declared.region.bytes.min(MAX_ARENA) {
            return Err(Box::new(VerifyError::Bytes {
                subject: self.plan.describe(task),
                problem: format!("copies to byte {offset}, beyond the end of any snapshot"),
                remedy: "lay copies one after the other".into(),
            }));
        }
        let problem = match self.copied.iter().find(|(_, other)| other.overlaps(to)) {
            Some((other, _)) => {
                format!("copies into bytes of the snapshot that have slot `{}`", self.slot_name(*other))
            }
            None if !offset.is_multiple_of(ALIGNMENT) => format!("copies to byte {offset} of the snapshot"),
            None => {
                self.copied.insert(from, to);
                return Ok(());
            }
        };
        let remedy = "give every slot that is copied aligned bytes of its own".to_owned();
        Err(Box::new(VerifyError::Bytes { subject: self.plan.describe(task), problem, remedy }))
    }

    /// A plan that takes a snapshot has copied all of it.
    pub(super) fn snapshot_is_whole(&self) -> Verdict<()> {
        let left_out =
            |(id, slot): &(SlotId, &Slot)| self.saved_of(slot).is_some() && !self.copied.contains_key(id);
        match self.plan.arena.entries().find(left_out).filter(|_| self.plan.takes_snapshot) {
            None => Ok(()),
            Some((_, slot)) => Err(Box::new(VerifyError::Edge {
                subject: self.plan.title(),
                needs: format!("a copy of slot `{}` in its snapshot", slot.name),
                finds: "no task makes one".into(),
                remedy: "copy everything that a checkpoint is made of".into(),
            })),
        }
    }

    /// The weight whose values in a checkpoint are made of this slot, if there is one. Frozen weights stay as they are.
    fn saved_of(&self, slot: &Slot) -> Option<WeightId> {
        let weights = &self.plan.weights;
        let weight = match slot.content {
            Content::Master(weight) | Content::MasterRemainder(weight) | Content::State(weight, _) => weight,
            Content::Shard(weight, Orientation::Rowwise)
                if weights.splits_masters(weights.layout(weight).bucket) =>
            {
                weight
            }
            _ => return None,
        };
        let trains = !weights.layout(weight).frozen;
        (slot.residency == Residency::Resident && trains).then_some(weight)
    }
}
