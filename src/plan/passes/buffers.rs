//! Gives every declared buffer its slot, and copies inputs in and outputs out.
//!
//! Law: a call sees a buffer at one address for the whole step; the trainer sees only staging.
//! An input is copied right before the first call that reads it, an output right behind the last
//! call that writes it, so that neither occupies transient memory longer than needed.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use crate::id::{BufferId, SlotId};
use crate::layout::Content;
use crate::model::{Lifetime, Role};
use crate::op::Op;

/// The slot of every buffer, in the order of their ids; `None` for a buffer no call touches.
pub(in super::super) fn buffers(draft: &mut Draft<'_>) -> Vec<Option<SlotId>> {
    let all = draft.buffers;
    let touched = touched(draft);
    let mut slots = Vec::with_capacity(all.len());
    for (number, spec) in all.iter().enumerate() {
        let buffer = BufferId::at(number);
        let Some((first, last)) = touched[number] else {
            slots.push(None);
            continue;
        };
        let slot = match spec.lifetime {
            Lifetime::Carried => draft.slot(Content::Buffer(buffer)),
            Lifetime::Call | Lifetime::Step => draft.transient(spec.name.clone(), Content::Buffer(buffer)),
        };
        let staging = draft.slot(Content::Staging(buffer));
        let (copy, stage, section) = match spec.role {
            Role::Internal => (None, 0, Section::Inputs),
            Role::Input => (Some(Op::Copy { from: staging, to: slot }), first, Section::Inputs),
            Role::Output => (Some(Op::Copy { from: slot, to: staging }), last, Section::Outputs),
        };
        if let Some(op) = copy {
            draft.add(stage, section, DraftTask::local(op, &spec.name, Carrier::Compute));
        }
        slots.push(Some(slot));
    }
    slots
}

/// The first and the last stage whose call touches each buffer.
fn touched(draft: &Draft<'_>) -> Vec<Option<(usize, usize)>> {
    let mut touched: Vec<Option<(usize, usize)>> = vec![None; draft.buffers.len()];
    for (stage, _, call) in draft.stages_of_calls() {
        for access in &call.buffers {
            let stages = &mut touched[access.buffer.index()];
            *stages = Some(stages.map_or((stage, stage), |(first, _)| (first, stage)));
        }
    }
    touched
}
