//! Gives every declared buffer its slots, and copies inputs in and outputs out.
//!
//! Law: a call sees a buffer at one address for its whole micro-batch; the user sees only staging.
//! An input is copied right before the first call of a micro-batch that touches it, an output right after the last
//! that does, so that neither occupies transient memory longer than needed; but what a collective leaves in an output
//! is copied at the end, so that no call waits for it. Each micro-batch has slots of its own, so what one has done with
//! is free for the next; a carried buffer has one for all, so what the next micro-batch overwrites is copied before.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use crate::layout::Content;
use crate::model::{Lifetime, Role};
use crate::op::{self, Op};
use warpweft_base::id::{BufferId, MicroBatchId, SlotId};

/// Per micro-batch, the slot of every buffer, in the order of their ids; `None` for a buffer no call touches.
pub(in super::super) fn buffers(draft: &mut Draft<'_>) -> Vec<Vec<Option<SlotId>>> {
    let touched = touched(draft);
    let count = touched.len();
    let of_each =
        |(number, of): (usize, Vec<Touched>)| in_micro_batch(draft, number, number + 1 == count, &of);
    touched.into_iter().enumerate().map(of_each).collect()
}

/// The first and the last stage of a micro-batch that touch a buffer.
type Touched = Option<(usize, usize)>;

fn in_micro_batch(
    draft: &mut Draft<'_>,
    number: usize,
    is_last: bool,
    touched: &[Touched],
) -> Vec<Option<SlotId>> {
    let all = draft.buffers;
    let micro_batch = MicroBatchId::at(number);
    let mut slots = Vec::with_capacity(all.len());
    for (number, spec) in all.iter().enumerate() {
        let buffer = BufferId::at(number);
        let Some((first, last)) = touched[number] else {
            slots.push(None);
            continue;
        };
        let name = match micro_batch.number() {
            0 => spec.name.clone(),
            _ => format!("{} of {micro_batch}", spec.name),
        };
        let slot = match spec.lifetime {
            Lifetime::Carried => draft.slot(Content::Buffer(buffer)),
            Lifetime::Call | Lifetime::Step => draft.transient(name, Content::Buffer(buffer)),
        };
        let staging = draft.slot(Content::Staging(buffer, micro_batch));
        let (copy, stage, section) = match spec.role {
            Role::Internal => (None, 0, Section::Inputs),
            Role::Input => (Some(Op::Copy(op::Copy { from: staging, to: slot })), first, Section::Inputs),
            Role::Output => {
                let stage = copied_after(draft, buffer, last, is_last);
                (Some(Op::Copy(op::Copy { from: slot, to: staging })), stage, Section::Outputs)
            }
        };
        if let Some(op) = copy {
            draft.add(stage, section, DraftTask::local(op, &spec.name, Carrier::Compute));
        }
        slots.push(Some(slot));
    }
    slots
}

/// The stage in which an output goes out that stage `last` touches last in its micro-batch. Copies are on the compute
/// lane, and would hold up the calls after a collective.
fn copied_after(draft: &Draft<'_>, output: BufferId, last: usize, is_last: bool) -> usize {
    let collective = draft.calls.get(last).and_then(|call| call.collective);
    let is_exchanged = collective.is_some_and(|collective| collective.to == output);
    let is_overwritten = !is_last && draft.buffers[output.index()].lifetime == Lifetime::Carried;
    if is_exchanged && !is_overwritten { draft.tail() } else { last }
}

/// Per micro-batch and buffer, the stages whose calls touch it.
fn touched(draft: &Draft<'_>) -> Vec<Vec<Touched>> {
    let count = draft.calls.last().map_or(0, |call| call.micro_batch.index() + 1);
    let mut touched: Vec<Vec<Touched>> = vec![vec![None; draft.buffers.len()]; count];
    for (stage, _, call) in draft.stages_of_calls() {
        for access in &call.buffers {
            let stages = &mut touched[call.micro_batch.index()][access.buffer.index()];
            *stages = Some(stages.map_or((stage, stage), |(first, _)| (first, stage)));
        }
    }
    touched
}
