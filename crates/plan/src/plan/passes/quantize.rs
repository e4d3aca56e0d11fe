//! Masters into quantized shards: amax, one packed all-reduce of maxima, scale, cast.
//!
//! Law: every bucket goes through the same four ops; a format without scales needs only the cast, one without
//! a per-tensor amax no collective. Whether weights of it share a scale changes no task. A bucket whose
//! shards are halves of its masters needs nothing: the optimizer writes them; nor, in a step, does one whose
//! masters the optimizer casts as it makes them. Of others it may have taken the amaxes. A frozen bucket has
//! no masters, and no plan quantizes it. Where scaling is delayed, scale and cast come while the maxima are
//! under way, and the maxima enter the history after them. A prologue is these ops alone, without a vote; it
//! brings no masters of a new version, so it records no amaxes.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::combined_bytes;
use crate::layout::Content;
use crate::model::{Group, Placement};
use crate::op::{
    AllReduce, AmaxesOperand, DelayedScale, FusedScale, Op, PartialAmax, PartialCast, RecordAmax, Reduction,
    ShardOperand,
};
use warpweft_base::id::{BucketId, SlotId};

/// The amaxes of a bucket: of its blocks, and of its weights over all ranks.
struct Amaxes {
    bucket: BucketId,
    blocks: SlotId,
    tensors: SlotId,
}

pub(in super::super) fn quantize(draft: &mut Draft<'_>, vote: Option<SlotId>) {
    let quantized = draft
        .weights
        .entries()
        .filter(|(_, members)| members.placement == Placement::Sharded && !members.frozen)
        .filter(|(bucket, _)| !draft.weights.splits_masters(*bucket))
        .filter(|(bucket, _)| vote.is_none() || !draft.weights.casts_in_update(*bucket))
        .map(|(bucket, _)| bucket);
    let (delayed, current): (Vec<_>, Vec<_>) =
        quantized.partition(|bucket| draft.weights.delayed(*bucket).is_some());
    let recorded = if vote.is_some() { delayed.as_slice() } else { &[] };
    let mut amaxes = Vec::new();
    for bucket in recorded.iter().chain(&current) {
        if draft.weights.bucket(*bucket).has_scales() {
            amaxes.push(partial_amax(draft, *bucket, vote));
        }
    }
    all_reduce(draft, &mut amaxes);
    let amaxes_of = |bucket: BucketId| amaxes.iter().find(|amaxes| amaxes.bucket == bucket);
    for bucket in &delayed {
        delayed_scale(draft, *bucket, vote);
        cast(draft, *bucket, Some(draft.slot(Content::DelayedScale(*bucket))), vote);
    }
    for bucket in &current {
        let encode = amaxes_of(*bucket).map(|amaxes| fused_scale(draft, amaxes, vote));
        cast(draft, *bucket, encode, vote);
    }
    for amaxes in recorded.iter().filter_map(|bucket| amaxes_of(*bucket)) {
        let bucket = amaxes.bucket;
        let history = draft.slot(Content::AmaxHistory(bucket));
        add(draft, bucket, Op::RecordAmax(RecordAmax { bucket, tensor_amax: amaxes.tensors, history, vote }));
    }
}

/// Slots for the amaxes of a bucket that this rank takes.
pub(super) fn amaxes(draft: &mut Draft<'_>, bucket: BucketId) -> AmaxesOperand {
    AmaxesOperand {
        block_amax: draft.transient(format!("{bucket} block amaxes"), Content::BlockAmax(bucket)),
        tensor_amax: draft.transient(format!("{bucket} local amaxes"), Content::LocalAmax(bucket)),
    }
}

/// The amaxes of a bucket, which its update has taken or a task of their own takes.
fn partial_amax(draft: &mut Draft<'_>, bucket: BucketId, vote: Option<SlotId>) -> Amaxes {
    if vote.is_some() && draft.weights.amaxes_in_update(bucket) {
        let (blocks, tensors) = (Content::BlockAmax(bucket), Content::LocalAmax(bucket));
        return Amaxes { bucket, blocks: draft.slot(blocks), tensors: draft.slot(tensors) };
    }
    let AmaxesOperand { block_amax, tensor_amax } = amaxes(draft, bucket);
    let masters = masters(draft, bucket);
    add(draft, bucket, Op::PartialAmax(PartialAmax { bucket, masters, block_amax, tensor_amax, vote }));
    Amaxes { bucket, blocks: block_amax, tensors: tensor_amax }
}

/// The maximum over the ranks of all amaxes of weights that any scale needs, as one collective: over those that have
/// all rows together. Those of experts are another, as others have other experts.
fn all_reduce(draft: &mut Draft<'_>, amaxes: &mut [Amaxes]) {
    let weights = draft.weights;
    for (experts, subject) in [(false, "amaxes"), (true, "amaxes of experts")] {
        let is_of = |amaxes: &&mut Amaxes| weights.bucket(amaxes.bucket).expert == experts;
        let of_kind: Vec<_> = amaxes.iter_mut().filter(is_of).collect();
        let Some(first) = of_kind.first() else { continue };
        let group = weights.all_rows(first.bucket);
        all_reduce_over(draft, group, subject, of_kind.into_iter());
    }
}

fn all_reduce_over<'a>(
    draft: &mut Draft<'_>,
    group: Group,
    subject: &'static str,
    amaxes: impl Iterator<Item = &'a mut Amaxes>,
) {
    let mut pairs = Vec::new();
    let mut values = Vec::new();
    for Amaxes { bucket, tensors, .. } in amaxes {
        let members = draft.weights.bucket(*bucket);
        if members.format.needs_tensor_amax() {
            let reduced = draft.transient(format!("{bucket} amaxes"), Content::ReducedAmax(*bucket));
            pairs.push((*tensors, reduced));
            values.push(members.weights.len());
            *tensors = reduced;
        }
    }
    if !pairs.is_empty() {
        let mesh = draft.weights.mesh;
        let bytes = combined_bytes(values.into_iter(), mesh, group);
        let op = Op::AllReduce(AllReduce { reduction: Reduction::Max, group, pairs });
        let task = DraftTask::collective(op, subject, Carrier::Reduce, bytes);
        draft.add(draft.tail(), Section::Tail, task);
    }
}

/// Returns the slot of the encode factors.
fn fused_scale(draft: &mut Draft<'_>, amaxes: &Amaxes, vote: Option<SlotId>) -> SlotId {
    let Amaxes { bucket, blocks: block_amax, tensors: tensor_amax } = *amaxes;
    let encode = draft.transient(format!("{bucket} encode factors"), Content::Encode(bucket));
    let tensor_scale = draft.slot(Content::TensorScale(bucket));
    let shards = shards(draft, bucket);
    let op =
        Op::FusedScale(FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote });
    add(draft, bucket, op);
    encode
}

fn delayed_scale(draft: &mut Draft<'_>, bucket: BucketId, vote: Option<SlotId>) {
    let history = vote.map(|_| draft.slot(Content::AmaxHistory(bucket)));
    let scale = draft.slot(Content::DelayedScale(bucket));
    let tensor_scale = draft.slot(Content::TensorScale(bucket));
    add(draft, bucket, Op::DelayedScale(DelayedScale { bucket, history, scale, tensor_scale, vote }));
}

fn cast(draft: &mut Draft<'_>, bucket: BucketId, encode: Option<SlotId>, vote: Option<SlotId>) {
    let (masters, shards) = (masters(draft, bucket), shards(draft, bucket));
    add(draft, bucket, Op::PartialCast(PartialCast { bucket, masters, encode, shards, vote }));
}

fn add(draft: &mut Draft<'_>, bucket: BucketId, op: Op) {
    draft.add(draft.tail(), Section::Tail, DraftTask::local(op, bucket.to_string(), Carrier::Quantize));
}

fn masters(draft: &Draft<'_>, bucket: BucketId) -> Vec<SlotId> {
    let members = draft.weights.bucket(bucket);
    members.weights.iter().map(|weight| draft.slot(Content::Master(*weight))).collect()
}

fn shards(draft: &Draft<'_>, bucket: BucketId) -> Vec<ShardOperand> {
    let members = draft.weights.bucket(bucket);
    let mut shards = Vec::new();
    for weight in &members.weights {
        for orientation in members.format.stored_orientations() {
            let slot = draft.slot(Content::Shard(*weight, *orientation));
            shards.push(ShardOperand { weight: *weight, orientation: *orientation, slot });
        }
    }
    shards
}
