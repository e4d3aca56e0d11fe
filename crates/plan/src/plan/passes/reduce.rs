//! Reduces every gradient and accumulates it into the FP32 main grad.
//!
//! Law (PL-4): every gradient a call writes is reduced and accumulated exactly once. Gradients of a sharded
//! weight that the policy reduces together ([`ReduceEvery`]) are added to the first of them, in its slot, one
//! step after compute each. What a call writes in bf16 is added to nothing on the rank, and is reduced in
//! bf16 as it lies, or rounded to MXFP8 where gradients travel so. What is complete is summed as many calls
//! after compute as the timetable says, by a task of each rank, which accumulates as well; it is exchanged
//! among the ranks of a replica one call before, or right after its call where reductions have a communicator
//! of their own: after the next call in T, or before it where the timetable has exchanges early and its
//! gradients are complete by then, neither added to others nor rounded. Where sums have levels
//! ([`Mesh::tree`]), that is the first of them. What it leaves is exchanged right after it, beside what other
//! gradients do at the first level, and summed one call further, level after level; it travels as
//! [`ReduceDtype`] says. Where there are several replicas the last task leaves the sums as they are; right
//! after it they are summed over the replicas, in f32, and one call further they are accumulated; where each
//! replica keeps a slice of the rows, that is one more level, and optimizer instances are summed over as
//! replicas are. Where collectives sum ([`Policy::collectives_sum`]), the reduction is one task in the place
//! of that sum, the sum over the replicas stands right after it, and accumulation one call further. A replica
//! of one rank exchanges nothing. A replicated weight's gradient is accumulated locally, and one all-reduce
//! over all ranks, in levels one for each, carries all of them together. The first contribution of a step
//! overwrites, unless the step continues a sum that steps before it began: then none does. Gradients of one
//! group that one call completes are one collective, and one sum. What accumulates a sharded weight's last
//! contribution of a step takes the squares of the main grad for the norm.
//!
//! [`Policy::collectives_sum`]: super::super::Policy::collectives_sum
//! [`ReduceDtype`]: crate::policy::ReduceDtype
//! [`Mesh::tree`]: crate::model::Mesh::tree

mod collected;

use std::collections::{BTreeSet, HashMap};

use self::collected::{Alike, Collected, Contribution, CopiesSum, OfCall, Rows, SumLevel};
use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::super::prefetch::Reductions;
use super::{combined_bytes, of_group, wire_bytes};
use crate::layout::Content;
use crate::model::{Call, Gradient, Placement};
use crate::op::{
    Accumulate, AddGradient, AllReduce, ExchangeGradient, Op, ReduceScatter, Reduction, RoundGradient,
    SumGradient, WireType,
};
use crate::policy::{Reduce, ReduceEvery};
use warpweft_base::id::{CallId, LevelId, MicroBatchId, SlotId, WeightId};
use warpweft_format::ElementType;

/// Gradients of one weight that are reduced together: those of one call, of one micro-batch, or all.
type Together = (WeightId, Option<MicroBatchId>, Option<CallId>);

/// The first and the last call whose gradients are reduced together.
#[derive(Clone, Copy)]
struct Span {
    first: CallId,
    last: CallId,
}

/// As the timetable says.
pub(in super::super) fn reduce(draft: &mut Draft<'_>, reductions: Reductions) {
    let spans = spans(draft);
    let mut ends: HashMap<WeightId, CallId> = HashMap::new();
    for ((weight, ..), Span { last, .. }) in &spans {
        let end = ends.entry(*weight).or_insert(*last);
        *end = (*end).max(*last);
    }
    let mut begun: BTreeSet<WeightId> = BTreeSet::new();
    if draft.continues {
        begun.extend((0..draft.weights.layouts.len()).map(WeightId::at));
    }
    for (stage, id, call) in draft.stages_of_calls() {
        let mut collected = OfCall::default();
        for Gradient { weight, element } in call.gradients.iter().copied() {
            match draft.weights.layout(weight).placement {
                Placement::Replicated => {
                    let from = draft.slot(Content::Gradient(weight, id));
                    let into = draft.slot(Content::LocalGrad(weight));
                    let rows = Rows { weight, from, first: begun.insert(weight), squares: None };
                    accumulate(draft, rows, into, stage + reductions.delay + 1);
                }
                Placement::Sharded => {
                    let Some(Span { first, last }) = spans.get(&together(draft, weight, id, call)).copied()
                    else {
                        continue;
                    };
                    add_to(draft, weight, first, id, stage);
                    if last == id {
                        let ends = ends.get(&weight) == Some(&id);
                        let contribution = Contribution { call: first, begins: begun.insert(weight), ends };
                        collect(draft, &mut collected, (weight, element), contribution, (id, stage));
                    }
                }
            }
        }
        for reduction in collected.all {
            add(draft, reduction, stage, reductions);
        }
    }
    all_reduce(draft);
}

/// Adds a reduction over the ranks of a replica, level after level, that over the replicas where there are several, and
/// the accumulation.
fn add(draft: &mut Draft<'_>, reduction: Collected, stage: usize, reductions: Reductions) {
    let Collected { name, alike, completed_later, levels, over_copies, rows } = reduction;
    let Reductions { delay, early } = reductions;
    let (mesh, tail) = (draft.weights.mesh, draft.tail());
    let weights = levels.iter().map(|level| level.parts.len().max(level.sums.len()));
    let subject = of_group(&name, weights.max().unwrap_or(0));
    let collective = levels.iter().all(|level| level.sums.is_empty());
    // However a contribution of a weight is reduced, it is accumulated as late as one through all levels.
    let (depth, levels_of) = (mesh.depth(alike.over).max(levels.len()), levels.len());
    let reduced = stage + delay;
    // An exchange has a call to itself at least before what it brings is summed. On a communicator of its own
    // it holds no gather up and begins at once, so that what lands has all the calls between to be summed; on
    // the gathers' it stands as late as that allows.
    let travels = match (collective, draft.policy.communicators) {
        (true, _) => reduced,
        (false, 0 | 1) => stage + delay.saturating_sub(1).max(1),
        (false, _) => stage + 1,
    };
    let at_once = travels.min(tail) == reduced.min(tail);
    let mut last = (reduced, if at_once { Section::SumHere } else { Section::Sum });
    for (number, SumLevel { group, wire, elements, parts, sums }) in levels.into_iter().enumerate() {
        let is_last = number + 1 == levels_of;
        let subject = if number == 0 { subject.clone() } else { format!("{subject} at {group}") };
        // Where nothing travels a sum waits for the call alone. Where collectives sum what travels in f32, all
        // contributions of a weight are accumulated in one section, whoever sums them: so in program order.
        let summed = match (parts.is_empty(), draft.policy.reduce) {
            (_, Reduce::Nccl) if over_copies.is_empty() && is_last => (reduced + depth, Section::Accumulate),
            (true, _) => (stage + 1, last.1),
            (false, _) if number == 0 => last,
            (false, _) => after_exchange(last, tail),
        };
        if !parts.is_empty() {
            let carrier = if number == 0 { Carrier::Reduce } else { Carrier::Replicas };
            let given = elements.saturating_mul(mesh.slices(group) as usize);
            let bytes = wire_bytes(given, wire, mesh, group);
            let op = match collective {
                true => Op::ReduceScatter(ReduceScatter { group, wire, parts }),
                false => Op::ExchangeGradient(ExchangeGradient { wire, group, parts }),
            };
            let task = DraftTask::collective(op, subject.clone(), carrier, bytes);
            let before = early && travels == stage + 1 && !collective && !completed_later;
            let (at, section) = match number {
                0 => (travels, if before { Section::Exchange } else { Section::Reduce }),
                _ => after_sum(last),
            };
            draft.add(at, section, task);
        }
        if !sums.is_empty() {
            let op = Op::SumGradient(SumGradient { wire, group, parts: sums });
            draft.add(summed.0, summed.1, DraftTask::local(op, subject, Carrier::Sum));
            last = summed;
        }
    }
    for CopiesSum { group, elements, pairs } in over_copies {
        let bytes = combined_bytes(elements.into_iter(), mesh, group);
        let op = Op::AllReduce(AllReduce { reduction: Reduction::Sum, group, pairs });
        let (at, section) =
            if collective { (reduced, Section::Reduce) } else { after_sum((reduced + depth - 1, last.1)) };
        draft.add(at, section, DraftTask::collective(op, subject.clone(), Carrier::Replicas, bytes));
    }
    for rows in rows {
        let into = draft.slot(Content::MainGrad(rows.weight));
        accumulate(draft, rows, into, reduced + depth);
    }
}

/// Where sums travel on that were made there.
const fn after_sum((stage, section): (usize, Section)) -> (usize, Section) {
    match section {
        Section::Sum => (stage, Section::Replicas),
        Section::SumHere => (stage, Section::ReplicasHere),
        _ => (stage, Section::Accumulate),
    }
}

/// Where the sum of a level stands, that of the level before having been made there: one call further, behind what is
/// summed for the first time then, which would otherwise wait for it; or in the tail after its exchange.
const fn after_exchange((stage, section): (usize, Section), tail: usize) -> (usize, Section) {
    match section {
        Section::Sum => (stage + 1, Section::SumHere),
        _ if stage < tail => (stage + 1, Section::SumHere),
        _ => (stage + 1, Section::Accumulate),
    }
}

fn accumulate(draft: &mut Draft<'_>, rows: Rows, into: SlotId, stage: usize) {
    let Rows { weight, from, first, squares } = rows;
    let op = Op::Accumulate(Accumulate { weight, from, into, first, squares });
    let task = DraftTask::local(op, draft.name(weight), Carrier::Sum);
    draft.add(stage, Section::Accumulate, task);
}

/// Adds a call's gradient to the first of those it is reduced with.
fn add_to(draft: &mut Draft<'_>, weight: WeightId, first: CallId, call: CallId, stage: usize) {
    if first != call {
        let from = draft.slot(Content::Gradient(weight, call));
        let into = draft.slot(Content::Gradient(weight, first));
        let op = Op::AddGradient(AddGradient { weight, from, into });
        let task = DraftTask::local(op, draft.name(weight), Carrier::Sum);
        draft.add(stage + 1, Section::AddGradients, task);
    }
}

/// Puts a complete gradient, which begins with that of call `first`, in the element type its call wrote, into
/// its group's reduction, or into one of its own; rounded, if it travels in another. Gradients that travel in
/// different types travel apart. `last` is the call that completes it.
fn collect(
    draft: &mut Draft<'_>,
    collected: &mut OfCall,
    (weight, written): (WeightId, ElementType),
    contribution: Contribution,
    (last, stage): (CallId, usize),
) {
    let first = contribution.call;
    let (name, call) = (draft.name(weight), draft.calls[first.index()].label());
    let mut from = draft.slot(Content::written(weight, first, written));
    let columns = draft.weights.layout(weight).shard.shape.cols;
    let wire = WireType::of_gradient(draft.policy.reduce_dtype, columns, written);
    let is_rounded = wire.element() != Some(written);
    if is_rounded {
        let content = Content::travelling(weight, first, wire);
        let to = draft.transient(format!("{name} gradient of {call} in {wire}"), content);
        let op = Op::RoundGradient(RoundGradient { weight, element: written, from, wire, to });
        let task = DraftTask::local(op, name, Carrier::Sum);
        draft.add(stage + 1, Section::AddGradients, task);
        from = to;
    }
    let layout = draft.weights.layout(weight);
    let alike = Alike { wire, over: layout.shard.group(), counts_tokens: layout.shard.counts_tokens() };
    let reduction = collected.joined_by(layout.group, name, alike);
    reduction.completed_later |= first != last || is_rounded;
    reduction.take(draft, weight, from, contribution);
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
        for gradient in &call.gradients {
            let span = spans.entry(together(draft, gradient.weight, id, call));
            span.or_insert(Span { first: id, last: id }).last = id;
        }
    }
    spans
}

/// The sums of all replicated weights that train over the ranks, as one collective; or as one of each level, of which
/// each but the last leaves a sum of its own.
fn all_reduce(draft: &mut Draft<'_>) {
    let layouts = draft.weights.layouts.iter().enumerate();
    let trains = layouts.filter(|(_, layout)| layout.placement == Placement::Replicated && !layout.frozen);
    let (weights, elements): (Vec<WeightId>, Vec<usize>) =
        trains.map(|(number, layout)| (WeightId::at(number), layout.stored_elements())).unzip();
    if weights.is_empty() {
        return;
    }
    let mesh = draft.weights.mesh;
    let tree = draft.policy.tree_of_replicated(mesh);
    let mut given: Vec<SlotId> =
        weights.iter().map(|weight| draft.slot(Content::LocalGrad(*weight))).collect();
    for (number, group) in tree.iter().copied().enumerate() {
        let is_last = number + 1 == tree.len();
        let left: Vec<SlotId> = weights
            .iter()
            .map(|weight| match is_last {
                true => draft.slot(Content::MainGrad(*weight)),
                false => {
                    let named = format!("{} block grad at {group}", draft.name(*weight));
                    draft.transient(named, Content::BlockGrad(*weight, LevelId::at(number)))
                }
            })
            .collect();
        let pairs = std::mem::replace(&mut given, left.clone()).into_iter().zip(left).collect();
        let op = Op::AllReduce(AllReduce { reduction: Reduction::Sum, group, pairs });
        let mut subject = "gradients of replicated weights".to_owned();
        if number > 0 {
            subject += &format!(" at {group}");
        }
        let bytes = combined_bytes(elements.iter().copied(), mesh, group);
        draft.add(draft.tail(), Section::Tail, DraftTask::collective(op, subject, Carrier::Reduce, bytes));
    }
}
