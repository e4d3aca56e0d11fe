//! Derives columnwise planes where a use wants them and the format does not store them.
//!
//! Law: on demand, the copy is made one call before its use (at the use itself for depth 0) and
//! released behind it; kept, it is made behind the first gather of the weight and lives until the
//! last columnwise use, so that backward needs no gather of its own.

use super::super::draft::{Carrier, Draft, DraftTask, Section, Supply};
use crate::config::Columnwise;
use crate::format::Orientation;
use crate::id::SlotId;
use crate::layout::Content;
use crate::model::Placement;
use crate::op::Op;

struct Held {
    gathered: SlotId,
    supply: Supply,
    last_use: usize,
}

pub(in super::super) fn columnwise(draft: &mut Draft<'_>) {
    let mut held: Vec<Held> = Vec::new();
    for (stage, _, call) in draft.stages_of_calls() {
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
            let issue = match draft.policy.depth {
                _ if keep => first_use(draft, gathered.slot).unwrap_or(stage),
                0 => stage,
                _ => gathered.stage.max(stage.saturating_sub(1)),
            };
            let known = held.iter_mut().rev().find(|copy| copy.gathered == gathered.slot);
            let supply = match known {
                Some(copy) if keep || issue <= copy.last_use + 1 => {
                    copy.last_use = stage;
                    copy.supply
                }
                _ => {
                    let name = draft.name(usage.weight);
                    let to = draft.transient(
                        format!("{name} columnwise for {}", call.name),
                        Content::Transposed(usage.weight),
                    );
                    let op = Op::Transpose { weight: usage.weight, from: gathered.slot, to };
                    draft.add(issue, Section::Transposes, DraftTask::local(op, name, Carrier::Quantize));
                    let supply = Supply { slot: to, stage: issue };
                    held.push(Held { gathered: gathered.slot, supply, last_use: stage });
                    supply
                }
            };
            draft.supplies[stage][position] = Some(supply);
        }
    }
}

/// The stage of the first call that reads a gathered slot.
fn first_use(draft: &Draft<'_>, gathered: SlotId) -> Option<usize> {
    draft.supplies.iter().position(|uses| uses.iter().flatten().any(|supply| supply.slot == gathered))
}
