//! One task per call: a closure's, with everything the call touches, or a collective's.
//!
//! Law: every gradient a call writes has a slot of its own, in the element type the call declares; padding
//! rows of that slot are zeroed right after the call. The fault word is cleared before the first call of the
//! step.

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::peers;
use crate::layout::Content;
use crate::model::{Access, Call, Collective, Form, Gradient};
use crate::op::{
    self, ClearFault, CollectiveCall, Compute, CountSlots, Op, Operand, OperandRole, ZeroPadding,
};
use warpweft_base::id::{BufferId, CallId, SlotId};

pub(in super::super) fn compute(draft: &mut Draft<'_>, buffers: &[Vec<Option<SlotId>>]) {
    let fault = draft.slot(Content::FaultWord);
    draft.add(
        0,
        Section::Inputs,
        DraftTask::local(Op::ClearFault(ClearFault { fault }), "step", Carrier::Compute),
    );
    for (stage, id, call) in draft.stages_of_calls() {
        if let Some(collective) = call.collective {
            let slots = &buffers[call.micro_batch.index()];
            draft.add(stage, Section::Compute, exchanged(draft, collective, (id, call), slots));
            continue;
        }
        let mut operands = Vec::new();
        for (position, usage) in call.uses.iter().enumerate() {
            if let Some(supply) = draft.supplies[stage][position] {
                operands.push(Operand {
                    slot: supply.slot,
                    access: Access::Read,
                    role: OperandRole::Use(position),
                });
            }
            let layout = draft.weights.layout(usage.weight);
            if usage.form == Form::Planes && draft.weights.bucket(layout.bucket).has_scales() {
                operands.push(Operand {
                    slot: draft.slot(Content::TensorScale(layout.bucket)),
                    access: Access::Read,
                    role: OperandRole::TensorScale(position),
                });
            }
        }
        let mut padded = Vec::new();
        for Gradient { weight, element } in &call.gradients {
            let name = draft.name(*weight);
            let content = Content::written(*weight, id, *element);
            let slot = draft.transient(format!("{name} gradient of {}", call.label()), content);
            operands.push(Operand { slot, access: Access::Write, role: OperandRole::Gradient(*weight) });
            let shard = &draft.weights.layout(*weight).shard;
            if shard.padded_rows() > shard.shape.rows {
                padded.push(DraftTask::local(
                    Op::ZeroPadding(ZeroPadding { weight: *weight, gradient: slot }),
                    name,
                    Carrier::Compute,
                ));
            }
        }
        for access in &call.buffers {
            if let Some(slot) = buffers[call.micro_batch.index()][access.buffer.index()] {
                operands.push(Operand {
                    slot,
                    access: access.access,
                    role: OperandRole::Buffer(access.buffer),
                });
            }
        }
        let op = Op::Compute(Compute { call: id, fault, operands });
        draft.add(stage, Section::Compute, DraftTask::local(op, call.label(), Carrier::Compute));
        for task in padded {
            draft.add(stage, Section::Compute, task);
        }
    }
}

/// Calls wait for a collective, and neither for gathers ahead nor for reductions, so it goes where those are not in its
/// way.
fn exchanged(
    draft: &Draft<'_>,
    collective: Collective,
    (id, call): (CallId, &Call),
    slots: &[Option<SlotId>],
) -> DraftTask {
    let Collective { kind, group, from, to, counts } = collective;
    // Touched by this very call, so each has one.
    let slot = |buffer: BufferId| slots[buffer.index()].unwrap_or(SlotId::at(usize::MAX));
    let given = |buffer: BufferId| {
        let ranks = draft.weights.mesh.size(group);
        op::collective_given_to_each(kind, draft.buffers[buffer.index()].bytes(), ranks)
    };
    // Of rows with counts these are the most that there can be.
    let brought = counts.filter(|counts| !counts.known).map_or(0, |counts| given(counts.given));
    let to_each = given(from).saturating_add(brought);
    let bytes = to_each.saturating_mul(peers(draft.weights.mesh, group));
    let counts = counts.map(|declared| CountSlots {
        given: slot(declared.given),
        taken: slot(declared.taken),
        declared,
    });
    let (from, to) = (slot(from), slot(to));
    let op = Op::CollectiveCall(CollectiveCall { call: id, kind, group, from, to, counts });
    DraftTask::collective(op, call.label(), Carrier::Calls, bytes)
}
