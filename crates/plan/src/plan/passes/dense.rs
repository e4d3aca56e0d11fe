//! Dequantizes planes for dense uses.
//!
//! Law: a dense copy is made on the compute lane right before the call that reads it; where the plan derives
//! ahead ([`Draft::derives_ahead`]), on the quantize lane beside the call before. It is shared with the next
//! call if that reads the same planes in the same element type. Planes that are such values already are read
//! as they lie. What one gather brought for a call is dequantized by one task ([`Joined`]). Rowwise planes that
//! nobody reads as planes are never made whole: their values are made of what arrived and of the rank's own
//! shard, one kernel in place of up to three, and nothing is copied.

use std::collections::HashSet;

use super::super::draft::{Carrier, Draft, Section, Supply, ahead_of};
use super::joined::Joined;
use super::latest::Latest;
use super::sent;
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{Dequantize, DequantizePart, Op, Transpose};
use warpweft_base::id::SlotId;
use warpweft_format::{ElementType, Orientation};

pub(in super::super) fn dense(draft: &mut Draft<'_>) {
    let mut latest: Latest<(SlotId, ElementType)> = Latest::new();
    let read_whole = read_whole(draft);
    let ahead = draft.derives_ahead();
    let carrier = if ahead { Carrier::Quantize } else { Carrier::Compute };
    for (stage, _, call) in draft.stages_of_calls() {
        let mut joined = Joined::new();
        for (position, usage) in call.uses.iter().enumerate() {
            let layout = draft.weights.layout(usage.weight);
            let Some(values) = usage.form.values() else { continue };
            if layout.placement == Placement::Replicated || layout.is_dense(values) {
                continue;
            }
            let Some(planes) = draft.supplies[stage][position] else { continue };
            let issue = if ahead { ahead_of(stage, planes.stage) } else { stage };
            // Derived ahead or not, it serves the next call and no later one.
            let supply = latest.serve((planes.slot, values), stage, stage, false, || {
                let name = draft.name(usage.weight);
                let to = draft.transient(
                    format!("{name} dense {} for {}", usage.orientation, call.label()),
                    Content::Dense(usage.weight, usage.orientation, values),
                );
                let tensor_scale = draft
                    .weights
                    .bucket(layout.bucket)
                    .has_scales()
                    .then(|| draft.slot(Content::TensorScale(layout.bucket)));
                let part = DequantizePart {
                    weight: usage.weight,
                    orientation: usage.orientation,
                    values,
                    from: planes.slot,
                    own: own(draft, planes.slot, &read_whole),
                    tensor_scale,
                    to,
                };
                joined.add(draft, (planes, to), issue, name, part);
                Supply { slot: to, stage: issue, ..planes }
            });
            draft.supplies[stage][position] = Some(supply);
        }
        for (issue, task) in joined.tasks(|parts| Op::Dequantize(Dequantize { parts }), carrier) {
            draft.add(issue, Section::Dequantize, task);
        }
    }
}

/// Gathered planes that somebody reads as planes: calls, and what derives columnwise ones.
fn read_whole(draft: &Draft<'_>) -> HashSet<SlotId> {
    let mut whole = HashSet::new();
    for (_, task) in draft.tasks() {
        if let Op::Transpose(Transpose { parts }) = &task.op {
            whole.extend(parts.iter().map(|part| part.from));
        }
    }
    for (stage, _, call) in draft.stages_of_calls() {
        for (usage, supply) in call.uses.iter().zip(&draft.supplies[stage]) {
            let layout = draft.weights.layout(usage.weight);
            if usage.form.values().is_none_or(|values| layout.is_dense(values)) {
                whole.extend(supply.map(|supply| supply.slot));
            }
        }
    }
    whole
}

/// The rank's own shard, where values are made of it and of what arrived.
fn own(draft: &mut Draft<'_>, planes: SlotId, read_whole: &HashSet<SlotId>) -> Option<SlotId> {
    match draft.content(planes)? {
        Content::Gathered(weight, Orientation::Rowwise) if !read_whole.contains(&planes) => {
            Some(sent(draft, weight, Orientation::Rowwise))
        }
        _ => None,
    }
}
