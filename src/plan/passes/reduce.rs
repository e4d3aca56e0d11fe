//! Reduces every gradient and accumulates it into the FP32 main grad.
//!
//! Law (PL-4): every gradient a call writes is reduced and accumulated exactly once. Gradients of a sharded weight
//! that the policy reduces together ([`ReduceEvery`]) are added to the first of them, in its slot, one step behind
//! compute each. What is complete is reduce-scattered as many calls behind compute as the timetable says, and
//! accumulated one further; a replicated weight's is accumulated locally, and one all-reduce carries all of them together. The first
//! contribution of a step overwrites.

use std::collections::{BTreeSet, HashMap};

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::wire_bytes;
use crate::config::ReduceEvery;
use crate::id::{CallId, MicroBatchId, WeightId};
use crate::layout::Content;
use crate::model::{Call, Placement};
use crate::op::{Op, Reduction};

/// Gradients of one weight that are reduced together: those of one call, of one micro-batch, or all.
type Together = (WeightId, Option<MicroBatchId>, Option<CallId>);

/// The first and the last call whose gradients are reduced together.
#[derive(Clone, Copy)]
struct Span {
    first: CallId,
    last: CallId,
}

/// `behind`: how many calls behind its own a reduction stands.
pub(in super::super) fn reduce(draft: &mut Draft<'_>, behind: usize) {
    let spans = spans(draft);
    let mut begun = BTreeSet::new();
    for (stage, id, call) in draft.stages_of_calls() {
        for weight in &call.grads {
            let weight = *weight;
            let name = draft.name(weight);
            let gradient = draft.slot(Content::Gradient(weight, id));
            let (from, into) = match draft.weights.layout(weight).placement {
                Placement::Replicated => (gradient, draft.slot(Content::LocalGrad(weight))),
                Placement::Sharded => {
                    let Some(Span { first, last }) = spans.get(&together(draft, weight, id, call)).copied()
                    else {
                        continue;
                    };
                    let sum = draft.slot(Content::Gradient(weight, first));
                    if first != id {
                        let op = Op::AddGradient { weight, from: gradient, into: sum };
                        let task = DraftTask::local(op, name, Carrier::Quantize);
                        draft.add(stage + 1, Section::AddGradients, task);
                    }
                    if last != id {
                        continue;
                    }
                    let reduced = draft.transient(
                        format!("{name} reduced gradient of {}", call.label()),
                        Content::ReducedGradient(weight, first),
                    );
                    let op = Op::ReduceScatter { weight, from: sum, to: reduced };
                    let bytes =
                        wire_bytes(draft.weights.layout(weight).stored_elements(), draft.weights.mesh);
                    let task = DraftTask::collective(op, name, Carrier::Reduce, bytes);
                    draft.add(stage + behind, Section::Reduce, task);
                    (reduced, draft.slot(Content::MainGrad(weight)))
                }
            };
            let op = Op::Accumulate { weight, from, into, first: begun.insert(weight) };
            draft.add(stage + behind + 1, Section::Accumulate, DraftTask::local(op, name, Carrier::Quantize));
        }
    }
    all_reduce(draft);
}

/// What the policy reduces the gradient of `weight` from this call with.
fn together(draft: &Draft<'_>, weight: WeightId, id: CallId, call: &Call) -> Together {
    match draft.policy.reduce_every {
        ReduceEvery::Call => (weight, None, Some(id)),
        ReduceEvery::MicroBatch => (weight, Some(call.micro_batch), None),
        ReduceEvery::Step => (weight, None, None),
    }
}

fn spans(draft: &Draft<'_>) -> HashMap<Together, Span> {
    let mut spans: HashMap<Together, Span> = HashMap::new();
    for (_, id, call) in draft.stages_of_calls() {
        for weight in &call.grads {
            let span = spans.entry(together(draft, *weight, id, call));
            span.or_insert(Span { first: id, last: id }).last = id;
        }
    }
    spans
}

/// The sums of all replicated weights over the ranks, as one collective.
fn all_reduce(draft: &mut Draft<'_>) {
    let replicated: Vec<_> = draft
        .weights
        .layouts
        .iter()
        .enumerate()
        .filter(|(_, layout)| layout.placement == Placement::Replicated)
        .map(|(number, layout)| (WeightId::at(number), layout.stored_elements()))
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
