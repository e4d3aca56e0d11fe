//! Dequantizes planes for dense uses.
//!
//! Law: a dense copy is made on the compute lane right before the call that reads it; where the plan derives
//! ahead ([`Draft::derives_ahead`]), on the quantize lane beside the call before. It is shared with the next
//! call if that reads the same planes in the same element type. Planes that are such values already are read
//! as they lie. What one gather brought for a call is dequantized by one task ([`Joined`]).

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, Section, Supply, ahead_of};
use super::joined::Joined;
use crate::format::ElementType;
use crate::id::SlotId;
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{DequantizePart, Op};

/// The latest dense copy of some planes.
struct Held {
    supply: Supply,
    last_use: usize,
}

pub(in super::super) fn dense(draft: &mut Draft<'_>) {
    let mut held: HashMap<(SlotId, ElementType), Held> = HashMap::new();
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
            let supply = match held.get_mut(&(planes.slot, values)) {
                Some(copy) if stage <= copy.last_use + 1 => {
                    copy.last_use = stage;
                    copy.supply
                }
                _ => {
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
                        tensor_scale,
                        to,
                    };
                    joined.add(draft, (planes, to), issue, name, part);
                    let supply = Supply { slot: to, stage: issue, ..planes };
                    held.insert((planes.slot, values), Held { supply, last_use: stage });
                    supply
                }
            };
            draft.supplies[stage][position] = Some(supply);
        }
        for (issue, task) in joined.tasks(|parts| Op::Dequantize { parts }, carrier) {
            draft.add(issue, Section::Dequantize, task);
        }
    }
}
