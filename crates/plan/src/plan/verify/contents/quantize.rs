//! PL-9, the way from masters to shards: amax, maximum over the ranks, scale, cast.
//!
//! Law: each stage takes what the stage before made of the same masters, so data, scales and tensor scales of
//! a bucket end at one version. The amaxes of a scale group are of one bucket and so of one slot, which has
//! all of them or none. Whatever reads masters that the optimizer rewrote in this step reads the vote too. An
//! update that casts what it makes is all stages at once, of a format that needs nothing from elsewhere for
//! it.

use super::{Held, Run, Verdict};
use crate::model::Group;
use crate::op::{AdamOperand, AmaxesOperand, MasterOperand, ShardOperand};
use warpweft_base::id::{BucketId, SlotId, TaskId, Version, WeightId};
use warpweft_format::Orientation;

impl Run<'_> {
    pub(super) fn partial_amax(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        masters: &[SlotId],
        (block_amax, tensor_amax): (SlotId, SlotId),
        vote: Option<SlotId>,
    ) -> Verdict<()> {
        let version = self.masters(task, bucket, masters)?;
        self.obeys_vote(task, vote, version)?;
        self.fill(task, block_amax, Held::BlockAmax(bucket, version))?;
        self.fill(task, tensor_amax, Held::LocalAmax(bucket, version))
    }

    /// Maxima over the ranks that hold all rows of a weight together: those of a replica, or all, or of experts those
    /// that share one.
    pub(super) fn reduce_amaxes(
        &mut self,
        task: TaskId,
        group: Group,
        pairs: &[(SlotId, SlotId)],
    ) -> Verdict<()> {
        for (from, to) in pairs {
            let Held::LocalAmax(bucket, version) = *self.slots.held(*from) else {
                let needs = "a bucket's amaxes of this rank, since it takes maxima".into();
                return self.wrong_state(task, *from, needs, "reduce amaxes by maximum and gradients by sum");
            };
            let weights = &self.plan.weights;
            let all_rows = weights.all_rows(bucket);
            if !weights.mesh.alike(group, all_rows) {
                let problem = format!("takes maxima over the {group} group");
                let remedy = match (weights.bucket(bucket).expert, all_rows) {
                    (true, _) => {
                        "take those of experts over the ranks that share their rows: others have other experts"
                    }
                    (false, Group::World) if weights.mesh.replicas() > 1 => {
                        "take them over all ranks: each replica has slices of its own of all rows"
                    }
                    (false, _) => {
                        "take them over the ranks of a replica: they have all rows together, and other replicas the same"
                    }
                };
                return self.wrong_program(self.plan.describe(task), problem, remedy);
            }
            self.fill(task, *to, Held::ReducedAmax(bucket, version))?;
        }
        Ok(())
    }

    pub(super) fn fused_scale(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        (block_amax, tensor_amax): (SlotId, SlotId),
        (encode, tensor_scale): (SlotId, SlotId),
        shards: &[ShardOperand],
        vote: Option<SlotId>,
    ) -> Verdict<()> {
        if self.plan.weights.delayed(bucket).is_some() {
            let problem = format!("takes scales of {bucket} from its present amaxes, but they are delayed");
            let remedy = "take them from the history";
            return self.wrong_program(self.plan.describe(task), problem, remedy);
        }
        let version = match *self.slots.held(block_amax) {
            Held::BlockAmax(of, version) if of == bucket => version,
            _ => {
                let needs = format!("the block amaxes of {bucket}");
                return self.wrong_state(task, block_amax, needs, "take the bucket's amaxes first");
            }
        };
        self.amaxes(task, bucket, tensor_amax, version, "like the blocks'")?;
        self.obeys_vote(task, vote, version)?;
        self.fill(task, encode, Held::Encode(bucket, version))?;
        self.fill(task, tensor_scale, Held::TensorScale(bucket, version))?;
        for shard in shards {
            let data = self.shard(task, bucket, shard)?.0;
            self.put_shard(task, shard, (data, Some(version)))?;
        }
        Ok(())
    }

    pub(super) fn partial_cast(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        masters: &[SlotId],
        encode: Option<SlotId>,
        shards: &[ShardOperand],
        vote: Option<SlotId>,
    ) -> Verdict<()> {
        let version = self.masters(task, bucket, masters)?;
        let factors = if self.plan.weights.delayed(bucket).is_some() {
            Held::DelayedScale(bucket, version)
        } else {
            Held::Encode(bucket, version)
        };
        match encode {
            Some(slot) if *self.slots.held(slot) != factors => {
                let needs = format!("{}, like its masters", factors.describe(self.plan));
                return self.wrong_state(
                    task,
                    slot,
                    needs,
                    "make the scales for the same masters before the cast",
                );
            }
            None if self.plan.weights.bucket(bucket).has_scales() => {
                let problem = format!("casts {bucket} without encode factors, but its format has scales");
                return self.wrong_program(
                    self.plan.describe(task),
                    problem,
                    "name the factors of the scale op",
                );
            }
            _ => {}
        }
        self.obeys_vote(task, vote, version)?;
        for shard in shards {
            let (_, scale) = self.shard(task, bucket, shard)?;
            // Without a scale plane the data alone say which version the shard has.
            let scale =
                if self.has_scale_plane(shard.weight, shard.orientation) { scale } else { Some(version) };
            self.put_shard(task, shard, (Some(version), scale))?;
        }
        Ok(())
    }

    /// An update writes the shard of a master that it brings to `version`.
    pub(super) fn cast_in_update(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        (weight, slot): (WeightId, SlotId),
        version: Version,
    ) -> Verdict<()> {
        let format = self.plan.weights.bucket(bucket).format;
        if !format.casts_by_blocks() {
            let problem =
                format!("casts {bucket} as it updates it, but a block of {format} needs more than itself");
            return self.wrong_program(self.plan.describe(task), problem, "quantize it after the update");
        }
        let shard = ShardOperand { weight, orientation: Orientation::Rowwise, slot };
        self.shard(task, bucket, &shard)?;
        self.put_shard(task, &shard, (Some(version), Some(version)))
    }

    /// What an update that casts does beside its shards: all or none of its weights are cast, and a bucket's scales are
    /// made by one update.
    pub(super) fn scales_of_update(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        (states, tensor_scale): (&[AdamOperand], Option<SlotId>),
        version: Version,
    ) -> Verdict<()> {
        let wrong =
            |problem: String, remedy: &str| self.wrong_program(self.plan.describe(task), problem, remedy);
        let members = self.plan.weights.bucket(bucket);
        let is_cast = |state: &&AdamOperand| matches!(state.master, MasterOperand::Cast { .. });
        let cast = states.iter().filter(is_cast).count();
        if cast != 0 && cast != states.len() {
            let problem = format!("casts {cast} of {} weights that it updates", states.len());
            return wrong(problem, "cast all of them or none");
        }
        match tensor_scale {
            Some(slot) if cast == members.weights.len() && members.has_scales() => {
                self.fill(task, slot, Held::TensorScale(bucket, version))
            }
            None if cast == 0 || !members.has_scales() => Ok(()),
            Some(_) => wrong(
                format!("names the tensor scales of {bucket}, but does not make them of all its weights"),
                "name them where every weight of a bucket with scales is cast",
            ),
            None => wrong(
                format!("casts {bucket} without its tensor scales, but its format has scales"),
                "name the tensor scales",
            ),
        }
    }

    /// An update takes the amaxes of all masters of a bucket, which are packed in its order.
    pub(super) fn amaxes_of_update(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        (states, amaxes): (&[AdamOperand], AmaxesOperand),
        version: Version,
    ) -> Verdict<()> {
        let members = self.plan.weights.bucket(bucket);
        let is_whole = |state: &AdamOperand| matches!(state.master, MasterOperand::Whole(_));
        let in_order = states.iter().map(|state| state.weight).eq(members.weights.iter().copied());
        if !members.has_scales() || !in_order || !states.iter().all(is_whole) {
            let problem = format!("takes amaxes of {bucket}, but not of all its masters in their order");
            let remedy = "take them where every weight of a bucket with scales is updated, and none is cast";
            return self.wrong_program(self.plan.describe(task), problem, remedy);
        }
        self.fill(task, amaxes.block_amax, Held::BlockAmax(bucket, version))?;
        self.fill(task, amaxes.tensor_amax, Held::LocalAmax(bucket, version))
    }

    /// `slot` must hold the amaxes of the bucket's masters at `version`, over all ranks if its scales need that.
    pub(super) fn amaxes(
        &self,
        task: TaskId,
        bucket: BucketId,
        slot: SlotId,
        version: Version,
        like: &str,
    ) -> Verdict<()> {
        let alone = self.plan.weights.mesh.size(self.plan.weights.all_rows(bucket)) == 1;
        let local_is_enough = alone || !self.plan.weights.bucket(bucket).format.needs_tensor_amax();
        let amax = self.slots.held(slot);
        let reduced = *amax == Held::ReducedAmax(bucket, version);
        let local = *amax == Held::LocalAmax(bucket, version);
        if reduced || local && local_is_enough {
            return Ok(());
        }
        let over = if local_is_enough { "" } else { " over all ranks" };
        let needs = format!("the amaxes of {bucket}{over} at {version}, {like}");
        self.wrong_state(task, slot, needs, "take the maximum over the ranks between amax and scale")
    }

    /// The one version of all masters of a bucket, in bucket order.
    fn masters(&self, task: TaskId, bucket: BucketId, masters: &[SlotId]) -> Verdict<Version> {
        let weights = &self.plan.weights.bucket(bucket).weights;
        if masters.len() != weights.len() {
            let problem =
                format!("names {} masters, but {bucket} has {} weights", masters.len(), weights.len());
            return self.wrong_program(
                self.plan.describe(task),
                problem,
                "name every master, in bucket order",
            );
        }
        let found = masters.iter().filter_map(|slot| match self.slots.held(*slot) {
            Held::Master(_, version) => Some(*version),
            _ => None,
        });
        let newest = found.max().unwrap_or(self.plan.entry.masters);
        for (weight, slot) in weights.iter().zip(masters) {
            if *self.slots.held(*slot) != Held::Master(*weight, newest) {
                let needs =
                    format!("the master of `{}` at {newest}, like its bucket's others", self.name(*weight));
                return self.wrong_state(
                    task,
                    *slot,
                    needs,
                    "let the optimizer rewrite every weight before they are quantized",
                );
            }
        }
        Ok(newest)
    }

    /// Versions of data and scales of a shard that `task` is about to rewrite in part.
    fn shard(
        &self,
        task: TaskId,
        bucket: BucketId,
        shard: &ShardOperand,
    ) -> Verdict<(Option<Version>, Option<Version>)> {
        match *self.slots.held(shard.slot) {
            Held::Shard { weight, orientation, data, scale }
                if (weight, orientation) == (shard.weight, shard.orientation)
                    && self.plan.weights.layout(weight).bucket == bucket =>
            {
                Ok((data, scale))
            }
            _ => {
                let needs =
                    format!("the {} shard of `{}`, of {bucket}", shard.orientation, self.name(shard.weight));
                self.wrong_state(task, shard.slot, needs, "quantize each bucket into its own shards")
            }
        }
    }

    fn put_shard(
        &mut self,
        task: TaskId,
        shard: &ShardOperand,
        (data, scale): (Option<Version>, Option<Version>),
    ) -> Verdict<()> {
        let ShardOperand { weight, orientation, slot } = *shard;
        self.fill(task, slot, Held::Shard { weight, orientation, data, scale })
    }

    /// A task after the optimizer must be a no-op when the vote says fault.
    pub(super) fn obeys_vote(&self, task: TaskId, vote: Option<SlotId>, version: Version) -> Verdict<()> {
        match vote {
            Some(slot) => self.is_vote(task, slot),
            None if version == self.plan.entry.masters => Ok(()),
            None => {
                let problem = format!(
                    "works on masters at {version}, which stand only after a clean vote, but reads no vote"
                );
                self.wrong_program(self.plan.describe(task), problem, "name the vote in the op")
            }
        }
    }
}
