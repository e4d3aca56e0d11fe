//! Masters into quantized shards: amax, one packed all-reduce of maxima, scale, cast.
//!
//! Law: every bucket goes through the same four ops; a format without scales needs only the cast,
//! one without a per-tensor amax no collective. A bucket whose shards are halves of its masters needs
//! nothing: the optimizer writes them. A prologue is these ops alone, without a vote.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::wire_bytes;
use crate::id::{BucketId, SlotId};
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{Op, Reduction, ShardOperand};

pub(in super::super) fn quantize(draft: &mut Draft<'_>, vote: Option<SlotId>) {
    let tail = draft.tail();
    let buckets: Vec<BucketId> = draft
        .weights
        .entries()
        .filter(|(_, members)| members.placement == Placement::Sharded)
        .filter(|(bucket, _)| !draft.weights.splits_masters(*bucket))
        .map(|(bucket, _)| bucket)
        .collect();
    let mut scaled = Vec::new();
    for bucket in &buckets {
        if !draft.weights.bucket(*bucket).has_scales() {
            continue;
        }
        let block_amax = draft.transient(format!("{bucket} block amaxes"), Content::BlockAmax(*bucket));
        let local = draft.transient(format!("{bucket} local amaxes"), Content::LocalAmax(*bucket));
        let op = Op::PartialAmax {
            bucket: *bucket,
            masters: masters(draft, *bucket),
            block_amax,
            tensor_amax: local,
            vote,
        };
        draft.add(tail, Section::Tail, DraftTask::local(op, bucket.to_string(), Carrier::Quantize));
        scaled.push((*bucket, block_amax, local));
    }
    let mut pairs = Vec::new();
    let mut elements = 0;
    for (bucket, _, amax) in &mut scaled {
        let members = draft.weights.bucket(*bucket);
        if members.format.needs_tensor_amax() {
            let reduced = draft.transient(format!("{bucket} amaxes"), Content::ReducedAmax(*bucket));
            pairs.push((*amax, reduced));
            elements += members.weights.len();
            *amax = reduced;
        }
    }
    if !pairs.is_empty() {
        let bytes = wire_bytes(elements, draft.weights.mesh);
        let op = Op::AllReduce { reduction: Reduction::Max, pairs };
        draft.add(tail, Section::Tail, DraftTask::collective(op, "amaxes", Carrier::Reduce, bytes));
    }
    for bucket in &buckets {
        let shards = shards(draft, *bucket);
        let mut encode = None;
        if let Some((_, block_amax, tensor_amax)) = scaled.iter().find(|(other, ..)| other == bucket).copied()
        {
            let factors = draft.transient(format!("{bucket} encode factors"), Content::Encode(*bucket));
            encode = Some(factors);
            let op = Op::FusedScale {
                bucket: *bucket,
                block_amax,
                tensor_amax,
                encode: factors,
                tensor_scale: draft.slot(Content::TensorScale(*bucket)),
                shards: shards.clone(),
                vote,
            };
            draft.add(tail, Section::Tail, DraftTask::local(op, bucket.to_string(), Carrier::Quantize));
        }
        let op = Op::PartialCast { bucket: *bucket, masters: masters(draft, *bucket), encode, shards, vote };
        draft.add(tail, Section::Tail, DraftTask::local(op, bucket.to_string(), Carrier::Quantize));
    }
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
