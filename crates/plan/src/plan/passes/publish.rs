//! Publishes what the step before updated: gathers slices of shards over the replicas.
//!
//! Law (PL-2): where optimizer state is sharded over the replicas, a program begins with own slices that are
//! current and others that are not there. What it reads of a shard is published once, before the shard's first
//! gather: by a collective among the ranks at one place of all replicas, or of those of an optimizer instance, and
//! an assemble that puts the rank's own slice beside the others'. So every program finds what it needs, whichever
//! ran before: one that updates leaves slices alone, and what nobody reads is not sent. It stands one call before
//! that in whose place its gather begins, on the communicator of the replicas; no task releases it, so it runs as
//! far ahead as that lane is free.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::{of_group, peers, weights_of};
use crate::layout::Content;
use crate::op::{AllGather, Assemble, GatherPart, Op};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::Orientation;

/// What a rank gives of its shard when it is gathered: all of it, as it is kept or as it is published by then.
pub(super) fn sent(draft: &mut Draft<'_>, weight: WeightId, orientation: Orientation) -> SlotId {
    if !draft.weights.layout(weight).is_in_slices() {
        return draft.slot(Content::Shard(weight, orientation));
    }
    let published = Content::Published(weight, orientation);
    match draft.known(published) {
        Some(slot) => slot,
        None => draft.transient(format!("{} published {orientation}", draft.name(weight)), published),
    }
}

/// Publishes those of the shards that nothing published so far, and of which a gather begins at `issue`.
pub(super) fn publish(draft: &mut Draft<'_>, issue: usize, gathered: &[GatherPart]) {
    let mut parts = Vec::new();
    for GatherPart { weight, orientation, from: to, .. } in gathered.iter().copied() {
        if draft.weights.layout(weight).is_in_slices() && draft.published.insert(to) {
            parts.push(GatherPart {
                weight,
                orientation,
                from: draft.slot(Content::Shard(weight, orientation)),
                to,
            });
        }
    }
    let Some(first) = parts.first() else { return };
    let subject = of_group(draft.name(first.weight), weights_of(&parts));
    let given = parts.iter().map(|part| draft.weights.layout(part.weight).shard_bytes(part.orientation));
    let given = given.fold(0, usize::saturating_add);
    let group = draft.weights.layout(first.weight).shard.slicers(draft.weights.mesh);
    let bytes = given.saturating_mul(peers(draft.weights.mesh, group));
    let stage = issue.saturating_sub(1);
    let op = Op::AllGather(AllGather { group, parts: parts.clone() });
    draft.add(stage, Section::Publish, DraftTask::collective(op, subject.clone(), Carrier::Replicas, bytes));
    let task = DraftTask::local(Op::Assemble(Assemble { parts }), subject, Carrier::Quantize);
    draft.add(stage, Section::Publish, task);
}
