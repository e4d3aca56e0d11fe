//! PL-9, delayed scaling: what remembers amaxes from step to step.
//!
//! Law: history and factors have the version of the masters whose amaxes were recorded last, and whose cast
//! used the factors. The next factors come from a history that does not know the masters they are for;
//! the history then takes the amaxes of exactly those masters. So each amax is recorded once, after the scale
//! op, and a factor never looks at the masters it is for.

use super::{Held, Run, Verdict};
use warpweft_base::id::{BucketId, SlotId, TaskId};

impl Run<'_> {
    pub(super) fn delayed_scale(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        history: Option<SlotId>,
        (scale, tensor_scale): (SlotId, SlotId),
        vote: Option<SlotId>,
    ) -> Verdict<()> {
        self.is_delayed(task, bucket)?;
        let Held::DelayedScale(of, in_use) = *self.slots.held(scale) else {
            return self.wrong_scale(task, bucket, scale);
        };
        if of != bucket {
            return self.wrong_scale(task, bucket, scale);
        }
        let version = match history {
            None => in_use,
            Some(history) => {
                if *self.slots.held(history) != Held::AmaxHistory(bucket, in_use) {
                    let needs =
                        format!("the amax history of {bucket} up to {in_use}, like the scales in use");
                    let remedy = "take the scales before this step's amaxes are recorded, and once";
                    return self.wrong_state(task, history, needs, remedy);
                }
                in_use.next()
            }
        };
        self.obeys_vote(task, vote, version)?;
        if history.is_some() {
            self.fill(task, scale, Held::DelayedScale(bucket, version))?;
        }
        self.fill(task, tensor_scale, Held::TensorScale(bucket, version))
    }

    pub(super) fn record_amax(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        tensor_amax: SlotId,
        history: SlotId,
        vote: Option<SlotId>,
    ) -> Verdict<()> {
        self.is_delayed(task, bucket)?;
        let version = match *self.slots.held(history) {
            Held::AmaxHistory(of, version) if of == bucket => version.next(),
            _ => {
                let needs = format!("the amax history of {bucket}");
                return self.wrong_state(task, history, needs, "name the bucket's own history");
            }
        };
        self.amaxes(task, bucket, tensor_amax, version, "one on from the history")?;
        self.obeys_vote(task, vote, version)?;
        self.fill(task, history, Held::AmaxHistory(bucket, version))
    }

    fn wrong_scale(&self, task: TaskId, bucket: BucketId, slot: SlotId) -> Verdict<()> {
        let needs = format!("the delayed scales of {bucket}");
        self.wrong_state(task, slot, needs, "name the bucket's own scales")
    }

    fn is_delayed(&self, task: TaskId, bucket: BucketId) -> Verdict<()> {
        if self.plan.weights.delayed(bucket).is_some() {
            return Ok(());
        }
        let problem = format!("remembers amaxes of {bucket}, whose scales are not delayed");
        self.wrong_program(self.plan.describe(task), problem, "take its scales from its present amaxes")
    }
}
