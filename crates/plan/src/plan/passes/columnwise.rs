//! Derives columnwise planes where a use wants them and the format does not store them.
//!
//! Law: on demand, the copy is made one call before its use (at the use itself for prefetch on demand) and
//! released after it; kept, it is made after the first gather of the weight and lives until the last
//! columnwise use, so that backward needs no gather of its own. What one gather brought for a call is derived
//! by one task ([`Joined`]).

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, Section, Supply, ahead_of};
use super::joined::Joined;
use super::latest::Latest;
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{Op, Transpose, TransposePart};
use crate::policy::Columnwise;
use warpweft_base::id::SlotId;
use warpweft_format::Orientation;

pub(in super::super) fn columnwise(draft: &mut Draft<'_>) {
    let mut latest: Latest<SlotId> = Latest::new();
    let first_uses = first_uses(draft);
    for (stage, _, call) in draft.stages_of_calls() {
        let mut joined = Joined::new();
        for (position, usage) in call.uses.iter().enumerate() {
            let layout = draft.weights.layout(usage.weight);
            let stored = layout.format.stored_orientations().contains(&usage.orientation);
            if layout.placement == Placement::Replicated
                || stored
                || usage.orientation == Orientation::Rowwise
            {
                continue;
            }
            let Some(gathered) = draft.supplies[stage][position] else { continue };
            let keep = draft.policy.columnwise == Columnwise::Keep;
            let issue = match draft.policy.prefetch.is_on_demand() {
                _ if keep => first_uses.get(&gathered.slot).copied().unwrap_or(stage),
                true => stage,
                false => ahead_of(stage, gathered.stage),
            };
            let supply = latest.serve(gathered.slot, stage, issue, keep, || {
                let name = draft.name(usage.weight);
                let to = draft.transient(
                    format!("{name} columnwise for {}", call.label()),
                    Content::Transposed(usage.weight),
                );
                let part = TransposePart { weight: usage.weight, from: gathered.slot, to };
                joined.add(draft, (gathered, to), issue, name, part);
                Supply { slot: to, stage: issue, ..gathered }
            });
            draft.supplies[stage][position] = Some(supply);
        }
        for (issue, task) in joined.tasks(|parts| Op::Transpose(Transpose { parts }), Carrier::Quantize) {
            draft.add(issue, Section::Transposes, task);
        }
    }
}

/// The stage of the first call that reads each gathered slot.
fn first_uses(draft: &Draft<'_>) -> HashMap<SlotId, usize> {
    let mut first_uses = HashMap::new();
    for (stage, supplies) in draft.supplies.iter().enumerate() {
        for supply in supplies.iter().flatten() {
            first_uses.entry(supply.slot).or_insert(stage);
        }
    }
    first_uses
}
