//! Reduces every gradient and accumulates it into the FP32 main grad.
//!
//! Law (PL-4): every gradient a call writes is reduced and accumulated exactly once. Gradients of a sharded weight
//! that the policy reduces together ([`ReduceEvery`]) are added to the first of them, in its slot, one step behind
//! compute each. What a call writes in bf16 is added to nothing
//! on the rank, rounded by nobody and travels so. What is complete is reduce-scattered as many calls behind compute as the timetable says, over the ranks of a
//! replica; right behind that its rows are summed over the replicas where there are several, in f32; and they are
//! accumulated one call further. A replicated weight's is accumulated locally, and one all-reduce over all ranks carries all of them
//! together. The first contribution of a step overwrites. Gradients of one group that one call completes are one collective.

use std::collections::{BTreeSet, HashMap};

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::{of_group, wire_bytes};
use crate::config::ReduceEvery;
use crate::format::ElementType;
use crate::id::{CallId, GroupId, MicroBatchId, SlotId, WeightId};
use crate::layout::Content;
use crate::model::{Call, Gradient, Group, Placement};
use crate::op::{Op, ReducePart, Reduction};

/// Gradients of one weight that are reduced together: those of one call, of one micro-batch, or all.
type Together = (WeightId, Option<MicroBatchId>, Option<CallId>);

/// The first and the last call whose gradients are reduced together.
#[derive(Clone, Copy)]
struct Span {
    first: CallId,
    last: CallId,
}

/// One reduction in the making.
struct Collected {
    group: Option<GroupId>,
    name: String,
    /// In what it travels.
    element: ElementType,
    elements: usize,
    parts: Vec<ReducePart>,
    /// From the reduced rows to their sums over the replicas; empty where there is one.
    sums: Vec<(SlotId, SlotId)>,
}

/// `behind`: how many calls behind its own a reduction stands.
pub(in super::super) fn reduce(draft: &mut Draft<'_>, behind: usize) {
    let spans = spans(draft);
    let mut begun = BTreeSet::new();
    for (stage, id, call) in draft.stages_of_calls() {
        let mut collected: Vec<Collected> = Vec::new();
        for Gradient { weight, element } in call.grads.iter().copied() {
            let (from, into) = match draft.weights.layout(weight).placement {
                Placement::Replicated => {
                    let gradient = draft.slot(Content::Gradient(weight, id));
                    (gradient, draft.slot(Content::LocalGrad(weight)))
                }
                Placement::Sharded => {
                    let Some(Span { first, last }) = spans.get(&together(draft, weight, id, call)).copied()
                    else {
                        continue;
                    };
                    add_to(draft, weight, first, id, stage);
                    if last != id {
                        continue;
                    }
                    let reduced = collect(draft, &mut collected, (weight, element), first, stage);
                    (reduced, draft.slot(Content::MainGrad(weight)))
                }
            };
            let op = Op::Accumulate { weight, from, into, first: begun.insert(weight) };
            let task = DraftTask::local(op, draft.name(weight), Carrier::Quantize);
            draft.add(stage + behind + 1, Section::Accumulate, task);
        }
        for reduction in collected {
            add(draft, reduction, stage + behind);
        }
    }
    all_reduce(draft);
}

/// Adds a reduction over the ranks of a replica, and that over the replicas where there are several.
fn add(draft: &mut Draft<'_>, reduction: Collected, stage: usize) {
    let Collected { name, element, elements, parts, sums, .. } = reduction;
    let mesh = draft.weights.mesh;
    let bytes = wire_bytes(elements, element, mesh, Group::Shard);
    let subject = of_group(&name, parts.len());
    let op = Op::ReduceScatter { element, parts };
    draft.add(stage, Section::Reduce, DraftTask::collective(op, subject.clone(), Carrier::Reduce, bytes));
    if !sums.is_empty() {
        let group = Group::Replicate;
        let bytes = wire_bytes(elements, ElementType::F32, mesh, group);
        let op = Op::AllReduce { reduction: Reduction::Sum, group, pairs: sums };
        draft.add(stage, Section::Reduce, DraftTask::collective(op, subject, Carrier::Reduce, bytes));
    }
}

/// Adds a call's gradient to the first of those it is reduced with.
fn add_to(draft: &mut Draft<'_>, weight: WeightId, first: CallId, call: CallId, stage: usize) {
    if first != call {
        let from = draft.slot(Content::Gradient(weight, call));
        let into = draft.slot(Content::Gradient(weight, first));
        let op = Op::AddGradient { weight, from, into };
        let task = DraftTask::local(op, draft.name(weight), Carrier::Quantize);
        draft.add(stage + 1, Section::AddGradients, task);
    }
}

/// Puts a complete gradient, in the element type its call wrote, into its group's reduction, or into one of its own; rounded to
/// bf16, if it travels so. Gradients that travel in different types travel apart. Returns the slot of the rank's rows, summed
/// over all ranks.
fn collect(
    draft: &mut Draft<'_>,
    collected: &mut Vec<Collected>,
    (weight, written): (WeightId, ElementType),
    first: CallId,
    stage: usize,
) -> SlotId {
    let (name, call) = (draft.name(weight), draft.calls[first.index()].label());
    let mut from = draft.slot(Content::written(weight, first, written));
    let element = draft.policy.reduce_dtype.travels(written);
    if element != written {
        let to = draft
            .transient(format!("{name} gradient of {call} in bf16"), Content::WireGradient(weight, first));
        let op = Op::RoundGradient { weight, from, to };
        let task = DraftTask::local(op, name, Carrier::Quantize);
        draft.add(stage + 1, Section::AddGradients, task);
        from = to;
    }
    let to = draft
        .transient(format!("{name} reduced gradient of {call}"), Content::ReducedGradient(weight, first));
    let sum = (draft.weights.mesh.replicas() > 1).then(|| {
        let named = format!("{name} gradient of {call} over all replicas");
        draft.transient(named, Content::SummedGradient(weight, first))
    });
    let layout = draft.weights.layout(weight);
    let (group, elements, part) = (layout.group, layout.stored_elements(), ReducePart { weight, from, to });
    let pair = sum.map(|sum| (to, sum));
    match collected
        .iter_mut()
        .find(|other| group.is_some() && (other.group, other.element) == (group, element))
    {
        Some(other) => {
            other.elements = other.elements.saturating_add(elements);
            other.parts.push(part);
            other.sums.extend(pair);
        }
        None => {
            let (name, sums) = (name.to_owned(), pair.into_iter().collect());
            collected.push(Collected { group, name, element, elements, parts: vec![part], sums });
        }
    }
    sum.unwrap_or(to)
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
        for gradient in &call.grads {
            let span = spans.entry(together(draft, gradient.weight, id, call));
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
        let group = Group::World;
        let op = Op::AllReduce { reduction: Reduction::Sum, group, pairs };
        let bytes = wire_bytes(elements, ElementType::F32, draft.weights.mesh, group);
        let task = DraftTask::collective(op, "gradients of replicated weights", Carrier::Reduce, bytes);
        draft.add(draft.tail(), Section::Tail, task);
    }
}
