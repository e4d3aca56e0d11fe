//! Reduces every gradient and accumulates it into the FP32 main grad.
//!
//! Law (PL-4): every gradient a call writes is reduced and accumulated exactly once. A sharded
//! weight's gradient is reduce-scattered as many calls behind compute as the timetable says, and accumulated one further; a
//! replicated weight's is accumulated locally, and one all-reduce carries all of them together.
//! The first contribution of a step overwrites.

use std::collections::BTreeSet;

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::wire_bytes;
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{Op, Reduction};

/// `behind`: how many calls behind its own a reduction stands.
pub(in super::super) fn reduce(draft: &mut Draft<'_>, behind: usize) {
    let mut begun = BTreeSet::new();
    for (stage, id, call) in draft.stages_of_calls() {
        for weight in &call.grads {
            let name = draft.name(*weight);
            let layout = draft.weights.layout(*weight);
            let gradient = draft.slot(Content::Gradient(*weight, id));
            let first = begun.insert(*weight);
            let (from, into) = match layout.placement {
                Placement::Replicated => (gradient, draft.slot(Content::LocalGrad(*weight))),
                Placement::Sharded => {
                    let reduced = draft.transient(
                        format!("{name} reduced gradient of {}", call.name),
                        Content::ReducedGradient(*weight, id),
                    );
                    let op = Op::ReduceScatter { weight: *weight, from: gradient, to: reduced };
                    let bytes = wire_bytes(layout.stored_elements(), draft.weights.mesh);
                    let task = DraftTask::collective(op, name, Carrier::Reduce, bytes);
                    draft.add(stage + behind, Section::Reduce, task);
                    (reduced, draft.slot(Content::MainGrad(*weight)))
                }
            };
            let op = Op::Accumulate { weight: *weight, from, into, first };
            draft.add(stage + behind + 1, Section::Accumulate, DraftTask::local(op, name, Carrier::Quantize));
        }
    }
    let replicated: Vec<_> = draft
        .weights
        .layouts
        .iter()
        .enumerate()
        .filter(|(_, layout)| layout.placement == Placement::Replicated)
        .map(|(number, layout)| (crate::id::WeightId::at(number), layout.stored_elements()))
        .collect();
    if !replicated.is_empty() {
        let pairs = replicated
            .iter()
            .map(|(weight, _)| {
                (draft.slot(Content::LocalGrad(*weight)), draft.slot(Content::MainGrad(*weight)))
            })
            .collect();
        let elements = replicated.iter().fold(0, |sum: usize, (_, elements)| sum.saturating_add(*elements));
        let op = Op::AllReduce { reduction: Reduction::Sum, pairs };
        let bytes = wire_bytes(elements, draft.weights.mesh);
        let task = DraftTask::collective(op, "gradients of replicated weights", Carrier::Reduce, bytes);
        draft.add(draft.tail(), Section::Tail, task);
    }
}
