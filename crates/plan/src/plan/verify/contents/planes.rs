//! PL-2, the way of a weight's planes: gathered, assembled, transposed, dequantized.
//!
//! Law: a gather sends the shard it names, whole and of one version, and brings those of the other ranks;
//! planes are whole, and may be read, once the rank's own shard of that version was put beside them. A shard of
//! which replicas have slices is sent as it was published: of one version, each slice once, the rank's own among
//! them. Without that, what arrived may be dequantized together with that shard. What is derived keeps weight and
//! version, and needs scales of the same version.

use super::{Held, Run, Verdict};
use crate::layout::Content;
use crate::model::Group;
use crate::op::{Chunk, DequantizePart, GatherPart, TransposePart};
use warpweft_base::id::{SlotId, TaskId, Version, WeightId};
use warpweft_format::Orientation;

impl Run<'_> {
    pub(super) fn gather(&mut self, task: TaskId, part: GatherPart) -> Verdict<()> {
        let GatherPart { weight, orientation, from, to } = part;
        if self.publishes(part) {
            let version = self.kept(task, weight, orientation, from)?;
            return self.fill(task, to, Held::Publishing(weight, orientation, version));
        }
        let version = self.own(task, weight, orientation, from)?;
        self.fill(task, to, Held::Arrived(weight, orientation, version))
    }

    /// The rank's own shard goes where those of the others are, once, and is of their version.
    pub(super) fn assemble(&mut self, task: TaskId, part: GatherPart) -> Verdict<()> {
        let GatherPart { weight, orientation, from, to } = part;
        if self.publishes(part) {
            let version = self.kept(task, weight, orientation, from)?;
            if *self.slots.held(to) != Held::Publishing(weight, orientation, version) {
                let needs = format!(
                    "the other replicas' slices of the {orientation} shard of `{}` at {version}, like this rank's own",
                    self.name(weight)
                );
                let remedy = "assemble a published shard once, after what gathers it over the replicas, with the slice that it sent";
                return self.wrong_use(task, to, needs, remedy);
            }
            return self.fill(task, to, Held::Published(weight, orientation, version));
        }
        let version = self.own(task, weight, orientation, from)?;
        if *self.slots.held(to) != Held::Arrived(weight, orientation, version) {
            let needs = format!(
                "the other ranks' whole {orientation} shards of `{}` at {version}, like this rank's own",
                self.name(weight)
            );
            let remedy = "assemble planes once, after their gather or the last chunk of one, with the shard that it sent";
            return self.wrong_use(task, to, needs, remedy);
        }
        self.fill(task, to, Held::Gathered(weight, orientation, version))
    }

    /// A chunk begins where those before it ended: nothing missing, nothing twice, all of one version. What
    /// the last one leaves is all that a gather brings.
    pub(super) fn gather_chunk(&mut self, task: TaskId, part: GatherPart, chunk: Chunk) -> Verdict<()> {
        let GatherPart { weight, orientation, from, to } = part;
        let version = self.own(task, weight, orientation, from)?;
        let whole = self.plan.weights.layout(weight).published_bytes(orientation);
        let is_range = chunk.begin < chunk.end && chunk.end <= whole;
        let before = Held::Gathering { weight, orientation, version, bytes: chunk.begin };
        if !is_range || (chunk.begin > 0 && *self.slots.held(to) != before) {
            let needs = format!(
                "bytes 0..{} of every other rank's {orientation} shard of `{}` at {version}, to gather {}..{} of {whole} after them",
                chunk.begin,
                self.name(weight),
                chunk.begin,
                chunk.end,
            );
            let remedy =
                "gather the chunks of a weight in the order of their bytes, each once and all of one version";
            return self.wrong_use(task, to, needs, remedy);
        }
        let held = match chunk.end == whole {
            true => Held::Arrived(weight, orientation, version),
            false => Held::Gathering { weight, orientation, version, bytes: chunk.end },
        };
        self.fill(task, to, held)
    }

    /// Slices of a shard are with the ranks at one place of all replicas, those of an expert with its copies: of
    /// those of an optimizer instance.
    pub(super) fn publishes_over(&self, task: TaskId, group: Group, weight: WeightId) -> Verdict<()> {
        let mesh = self.plan.weights.mesh;
        let slicers = self.plan.weights.layout(weight).shard.slicers(mesh);
        if mesh.alike(group, slicers) {
            return Ok(());
        }
        let name = self.name(weight);
        let problem = format!(
            "brings the {group} group together for a shard of `{name}`, whose slices the {slicers} group has"
        );
        let remedy = "publish a shard among the ranks that have its slices";
        self.wrong_program(self.plan.describe(task), problem, remedy)
    }

    /// Are slices of a shard gathered there, and not shards of a weight?
    pub(super) fn publishes(&self, part: GatherPart) -> bool {
        let content = self.plan.arena.slot(part.to).content;
        self.plan.weights.layout(part.weight).is_in_slices() && matches!(content, Content::Published(..))
    }

    /// The version of the whole shard that a gather sends, or an assemble puts in place: of a published one where
    /// replicas have slices.
    fn own(
        &self,
        task: TaskId,
        weight: WeightId,
        orientation: Orientation,
        from: SlotId,
    ) -> Verdict<Version> {
        if !self.plan.weights.layout(weight).is_in_slices() {
            return self.kept(task, weight, orientation, from);
        }
        match *self.slots.held(from) {
            Held::Published(w, o, version) if (w, o) == (weight, orientation) => Ok(version),
            _ => {
                let needs = format!("the published {orientation} shard of `{}`", self.name(weight));
                let remedy = "publish the shard first: gather its slices over the replicas and assemble them with the rank's own";
                self.wrong_use(task, from, needs, remedy)
            }
        }
    }

    /// The version of what the rank itself keeps quantized of a weight.
    fn kept(
        &self,
        task: TaskId,
        weight: WeightId,
        orientation: Orientation,
        from: SlotId,
    ) -> Verdict<Version> {
        match self.slots.held(from) {
            Held::Shard { weight: w, orientation: o, data: Some(data), scale }
                if (*w, *o) == (weight, orientation)
                    && (scale == &Some(*data) || !self.has_scale_plane(weight, orientation)) =>
            {
                Ok(*data)
            }
            _ => {
                let needs =
                    format!("the whole {orientation} shard of `{}` at one version", self.name(weight));
                self.wrong_use(
                    task,
                    from,
                    needs,
                    "take the weight's own shard, before or after its whole cast",
                )
            }
        }
    }

    pub(super) fn transpose(&mut self, task: TaskId, part: TransposePart) -> Verdict<()> {
        let TransposePart { weight, from, to } = part;
        let format = self.plan.weights.layout(weight).format;
        match *self.slots.held(from) {
            Held::Gathered(w, Orientation::Rowwise, version)
                if w == weight && format.derives_columnwise().is_ok() =>
            {
                self.fill(task, to, Held::Transposed(weight, version))
            }
            _ => {
                let needs = format!(
                    "gathered rowwise planes of `{}` to derive columnwise ones from",
                    self.name(weight)
                );
                self.wrong_planes(
                    task,
                    from,
                    needs,
                    "transpose the planes that a gather and an assemble of this weight filled",
                )
            }
        }
    }

    pub(super) fn dequantize(&mut self, task: TaskId, part: DequantizePart) -> Verdict<()> {
        let DequantizePart { weight, orientation, values, from, own, tensor_scale, to } = part;
        let version = match own {
            Some(own) => self.arrived_beside(task, weight, orientation, (own, from))?,
            None => match self.planes_at(from, weight, orientation) {
                Some(version) => version,
                None => {
                    let needs = format!("{orientation} planes of `{}`", self.name(weight));
                    let remedy = "dequantize what an assemble or a transpose of this weight left";
                    return self.wrong_planes(task, from, needs, remedy);
                }
            },
        };
        match tensor_scale {
            Some(slot) => self.tensor_scale(task, slot, weight, version)?,
            None if self.plan.weights.layout(weight).format.needs_tensor_amax() => {
                let needs = format!("the tensor scale of `{}` beside its planes", self.name(weight));
                return self.wrong_use(task, from, needs, "name the bucket's tensor scales in the op");
            }
            None => {}
        }
        self.fill(task, to, Held::Dense(weight, orientation, values, version))
    }

    /// The version of what arrived in `from`, if it is all that is missing beside the rank's own shard.
    fn arrived_beside(
        &self,
        task: TaskId,
        weight: WeightId,
        orientation: Orientation,
        (own, from): (SlotId, SlotId),
    ) -> Verdict<Version> {
        if orientation != Orientation::Rowwise {
            let needs = format!(
                "whole {orientation} planes of `{}`: rows of such planes do not stand alone",
                self.name(weight)
            );
            return self.wrong_use(task, from, needs, "assemble them, and leave the rank's own shard out");
        }
        let version = self.own(task, weight, orientation, own)?;
        if *self.slots.held(from) == Held::Arrived(weight, orientation, version) {
            return Ok(version);
        }
        let needs = format!(
            "the other ranks' whole rowwise shards of `{}` at {version}, like this rank's own, to dequantize both",
            self.name(weight)
        );
        let remedy = "dequantize rows after the gather, or the last chunk of one, that brought them; whole planes without the rank's own shard";
        self.wrong_use(task, from, needs, remedy)
    }

    /// PL-2: a reader of planes finds something else. Planes that were gathered and not assembled are named
    /// as such.
    pub(super) fn wrong_planes<T>(
        &self,
        task: TaskId,
        slot: SlotId,
        needs: String,
        remedy: &str,
    ) -> Verdict<T> {
        let Held::Arrived(weight, ..) = self.slots.held(slot) else {
            return self.wrong_use(task, slot, needs, remedy);
        };
        let name = self.name(*weight);
        let remedy = format!(
            "an assemble of `{name}` is missing: add one after its gather and before this reader, or let a dequantize name the rank's own shard"
        );
        self.wrong_use(task, slot, needs, &remedy)
    }

    /// The version of the planes of `weight` in `slot`, if that is what it holds. Planes an
    /// orientation's shards store come gathered, the others derived; a reader knows which layout
    /// to expect from the format.
    pub(super) fn planes_at(
        &self,
        slot: SlotId,
        weight: WeightId,
        orientation: Orientation,
    ) -> Option<Version> {
        let stored = self.plan.weights.layout(weight).format.stored_orientations().contains(&orientation);
        match *self.slots.held(slot) {
            Held::Gathered(w, o, version) if stored && (w, o) == (weight, orientation) => Some(version),
            Held::Transposed(w, version) if !stored && w == weight => Some(version),
            _ => None,
        }
    }

    /// `slot` must hold the tensor scales that `weight`'s planes at `version` were cast with.
    pub(super) fn tensor_scale(
        &self,
        task: TaskId,
        slot: SlotId,
        weight: WeightId,
        version: Version,
    ) -> Verdict<()> {
        let bucket = self.plan.weights.layout(weight).bucket;
        if *self.slots.held(slot) == Held::TensorScale(bucket, version) {
            return Ok(());
        }
        let needs =
            format!("the tensor scales of `{}` ({bucket}) at {version}, like its planes", self.name(weight));
        self.wrong_use(
            task,
            slot,
            needs,
            "read planes and tensor scales of one version, both before or both after the scale op",
        )
    }

    /// Do the shard's scales lie in a plane of their own, which must be of the data's version?
    pub(super) fn has_scale_plane(&self, weight: WeightId, orientation: Orientation) -> bool {
        self.plan.weights.layout(weight).shard_planes(orientation).len() > 1
    }
}
