//! Edits of one op: its operands, its weight, its parameters.
//!
//! Law: an edit changes one word of one op and nothing around it.

use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::layout::{ArenaLayout, Content, Slot};
use warpweft_plan::model::{Access, CollectiveKind, Group};
use warpweft_plan::op::{
    Accumulate, Adam, AdamOperand, AllGather, AllReduce, Assemble, ClearFault, CollectiveCall, Compute,
    CountSlots, DelayedScale, Dequantize, DequantizePart, ExchangeGradient, ExchangeRows, FusedScale,
    GatherChunk, GradNorm, MasterOperand, Op, Operand, OperandRole, PartialAmax, PartialCast, Prepare,
    PrepareOperand, RecordAmax, ReduceScatter, Reduction, RoundGradient, SumGradient, SumPart, SumTarget,
    Transform, Transpose, Update, UpdateOperand, WireType,
};
use warpweft_plan::plan::StepPlan;
use warpweft_testing::plan_books::{renumber_collectives, restate_what_is_received};
use warpweft_testing::random_programs::Draw;

use super::ops::words;

/// What an op names, to be changed.
pub(crate) struct Words<'op> {
    /// Every slot.
    pub(crate) slots: Vec<&'op mut SlotId>,
    /// Weights of which it may speak as well of others: the first of parts, every one of a round.
    pub(crate) weights: Vec<&'op mut WeightId>,
    pub(crate) bucket: Option<&'op mut BucketId>,
}

impl<'op> Words<'op> {
    pub(crate) fn of(slots: impl IntoIterator<Item = &'op mut SlotId>) -> Self {
        Self { slots: slots.into_iter().collect(), weights: Vec::new(), bucket: None }
    }

    /// Of parts that each name a weight and slots.
    pub(crate) fn of_parts<const SLOTS: usize>(
        parts: impl IntoIterator<Item = (&'op mut WeightId, [&'op mut SlotId; SLOTS])>,
    ) -> Self {
        let (weights, slots): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Self { weights: weights.into_iter().take(1).collect(), ..Self::of(slots.into_iter().flatten()) }
    }

    pub(crate) fn weights(self, weights: impl IntoIterator<Item = &'op mut WeightId>) -> Self {
        Self { weights: weights.into_iter().collect(), ..self }
    }

    pub(crate) fn bucket(self, bucket: &'op mut BucketId) -> Self {
        Self { bucket: Some(bucket), ..self }
    }
}

/// Every slot an op names.
pub(crate) fn slots_of(op: &mut Op) -> Vec<&mut SlotId> {
    words(op).slots
}

/// Takes one of several operands away, or one that may be absent.
pub(crate) fn lose_operand(op: &mut Op, draw: &mut Draw) -> Option<()> {
    fn one<T>(list: &mut Vec<T>, draw: &mut Draw) -> Option<()> {
        (!list.is_empty()).then(|| drop(list.remove(draw.below(list.len()))))
    }
    let absent = |slot: &mut Option<SlotId>| slot.take().map(drop);
    match op {
        Op::Compute(Compute { operands, .. }) => one(operands, draw),
        Op::PartialAmax(PartialAmax { masters, vote, .. }) => absent(vote).or_else(|| one(masters, draw)),
        Op::AllReduce(AllReduce { pairs, .. }) => one(pairs, draw),
        Op::FusedScale(FusedScale { shards, vote, .. }) if draw.one_in(2) || vote.is_none() => {
            one(shards, draw)
        }
        Op::FusedScale(FusedScale { vote, .. }) | Op::RecordAmax(RecordAmax { vote, .. }) => absent(vote),
        Op::DelayedScale(DelayedScale { history, vote, .. }) => {
            if draw.one_in(2) {
                absent(history)
            } else {
                absent(vote)
            }
        }
        Op::PartialCast(PartialCast { masters, encode, shards, vote, .. }) => match draw.below(4) {
            0 => one(masters, draw),
            1 => absent(encode),
            2 => absent(vote),
            _ => one(shards, draw),
        },
        Op::Transpose(Transpose { parts }) if parts.len() > 1 => one(parts, draw),
        Op::Dequantize(Dequantize { parts }) if parts.len() > 1 && draw.one_in(2) => one(parts, draw),
        Op::Dequantize(Dequantize { parts }) if draw.one_in(2) => absent(&mut parts.first_mut()?.own),
        Op::Dequantize(Dequantize { parts }) => absent(&mut parts.first_mut()?.tensor_scale),
        Op::AllGather(AllGather { parts, .. }) | Op::Assemble(Assemble { parts }) if parts.len() > 1 => {
            one(parts, draw)
        }
        Op::ReduceScatter(ReduceScatter { parts, .. })
        | Op::ExchangeGradient(ExchangeGradient { parts, .. })
            if parts.len() > 1 =>
        {
            one(parts, draw)
        }
        Op::SumGradient(SumGradient { parts, .. }) if parts.len() > 1 && draw.one_in(2) => one(parts, draw),
        Op::SumGradient(SumGradient { parts, .. }) => {
            let part = draw.below(parts.len());
            let SumPart { received, squares, .. } = &mut parts[part];
            if draw.one_in(2) { absent(squares).or_else(|| absent(received)) } else { absent(received) }
        }
        Op::Accumulate(Accumulate { squares, .. }) => absent(squares),
        Op::GradNorm(GradNorm { main_grads, squares, .. }) if draw.one_in(2) => {
            one(squares, draw).or_else(|| one(main_grads, draw))
        }
        Op::GradNorm(GradNorm { main_grads, .. }) => one(main_grads, draw),
        Op::Adam(Adam { tensor_scale, .. }) if tensor_scale.is_some() && draw.one_in(3) => {
            absent(tensor_scale)
        }
        Op::Adam(Adam { amaxes, .. }) if amaxes.is_some() && draw.one_in(3) => amaxes.take().map(drop),
        Op::Adam(Adam { states, .. }) => one(states, draw),
        Op::Prepare(Prepare { states, .. }) if draw.one_in(2) => one(states, draw),
        Op::Prepare(Prepare { states, .. }) => one(&mut states.first_mut()?.kept, draw),
        Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(Transform { weights, .. }) => {
            one(weights, draw)
        }
        Op::Update(Update { transformed, .. }) if transformed.is_some() && draw.one_in(3) => {
            absent(transformed)
        }
        Op::Update(Update { states, .. }) if draw.one_in(2) => one(states, draw),
        Op::Update(Update { states, .. }) => one(&mut states.first_mut()?.kept, draw),
        _ => None,
    }
}

/// Changes what an op does with its operands: which call runs, what begins a sum, which side of a weight,
/// what is combined how, and with whom.
pub(crate) fn change_phase(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let calls: Vec<_> = plan.tasks.iter().filter_map(|task| task.op.call()).collect();
    let other = |element| if element == ElementType::F32 { ElementType::Bf16 } else { ElementType::F32 };
    let wires = [WireType::F32, WireType::Bf16, WireType::Mxfp8];
    let other_wire = |wire: WireType, draw: &mut Draw| {
        let others: Vec<_> = wires.into_iter().filter(|other| *other != wire).collect();
        others[draw.below(others.len())]
    };
    let turned = |orientation: &mut Orientation| {
        *orientation = match orientation {
            Orientation::Rowwise => Orientation::Columnwise,
            Orientation::Columnwise => Orientation::Rowwise,
        };
    };
    let groups: Vec<Group> = plan.weights.mesh.groups().collect();
    match &mut plan.tasks[task].op {
        Op::Compute(Compute { call, .. }) => *call = *draw.of(&calls)?,
        Op::CollectiveCall(CollectiveCall { counts: counts @ Some(_), .. }) if draw.one_in(2) => {
            change_counts(counts, draw)?;
        }
        Op::CollectiveCall(CollectiveCall { call, kind, group, from, to, .. }) => match draw.below(4) {
            0 => *call = *draw.of(&calls)?,
            1 => {
                *kind = draw.among(&[
                    CollectiveKind::AllGather,
                    CollectiveKind::ReduceScatter,
                    CollectiveKind::AllToAll,
                    CollectiveKind::Sum,
                    CollectiveKind::Max,
                ]);
            }
            2 => *group = *draw.of(&groups)?,
            _ => std::mem::swap(from, to),
        },
        Op::Accumulate(Accumulate { first, .. }) => *first = !*first,
        Op::AllGather(AllGather { group, .. }) if draw.one_in(2) => *group = *draw.of(&groups)?,
        Op::AllGather(AllGather { parts, .. }) | Op::Assemble(Assemble { parts }) => {
            let part = draw.below(parts.len());
            turned(&mut parts[part].orientation);
        }
        Op::GatherChunk(GatherChunk { group, part, chunk }) => match draw.below(5) {
            4 => *group = *draw.of(&groups)?,
            0 => turned(&mut part.orientation),
            1 => chunk.begin += 64,
            2 => chunk.begin = chunk.begin.saturating_sub(64),
            _ => chunk.end -= 64.min(chunk.end - chunk.begin - 1),
        },
        Op::ReduceScatter(ReduceScatter { group, wire, .. }) => match draw.below(2) {
            0 => *wire = other_wire(*wire, draw),
            _ => *group = *draw.of(&groups)?,
        },
        Op::ExchangeGradient(ExchangeGradient { wire, group, .. }) => match draw.below(2) {
            0 => *wire = other_wire(*wire, draw),
            _ => *group = *draw.of(&groups)?,
        },
        Op::SumGradient(SumGradient { wire, group, parts }) => {
            let part = draw.below(parts.len());
            let targets = [
                SumTarget::Rows,
                SumTarget::Rounded,
                SumTarget::Quantized,
                SumTarget::First,
                SumTarget::More,
            ];
            match draw.below(4) {
                0 => *wire = other_wire(*wire, draw),
                1 => *group = *draw.of(&groups)?,
                _ => {
                    let others: Vec<_> =
                        targets.into_iter().filter(|target| *target != parts[part].target).collect();
                    parts[part].target = *draw.of(&others)?;
                }
            }
        }
        Op::RoundGradient(RoundGradient { element, wire, .. }) => match draw.below(2) {
            0 => *element = other(*element),
            _ => *wire = other_wire(*wire, draw),
        },
        Op::Dequantize(Dequantize { parts }) => {
            let part = draw.below(parts.len());
            let DequantizePart { weight, orientation, own, .. } = parts[part];
            match draw.below(3) {
                0 => turned(&mut parts[part].orientation),
                1 => parts[part].values = other(parts[part].values),
                _ if own.is_some() => parts[part].own = None,
                _ => parts[part].own = Some(plan.arena.find(Content::Shard(weight, orientation))?),
            }
        }
        Op::AllReduce(AllReduce { reduction, group, .. }) => match draw.below(2) {
            0 => *reduction = if *reduction == Reduction::Sum { Reduction::Max } else { Reduction::Sum },
            _ => *group = *draw.of(&groups)?,
        },
        // Squares of a weight are counted again, by themselves or with its main grad; or the main grad is squared in
        // their place, which is all the same.
        Op::GradNorm(GradNorm { main_grads, squares, .. }) => {
            let chosen = draw.below(squares.len().max(1));
            let (weight, slot) = *squares.get(chosen)?;
            let main_grad = (weight, plan.arena.find(Content::MainGrad(weight))?);
            match draw.below(4) {
                0 => squares.push((weight, slot)),
                1 => main_grads.push(main_grad),
                2 => {
                    squares.remove(chosen);
                    main_grads.push(main_grad);
                }
                _ => squares[chosen].1 = squares[draw.below(squares.len())].1,
            }
        }
        Op::Prepare(Prepare { states, .. }) => {
            let state = draw.below(states.len());
            let PrepareOperand { kept, main_grad, .. } = &mut states[state];
            change_lists(&plan.arena, kept, *main_grad, draw)?;
        }
        Op::ExchangeRows(ExchangeRows { group, weights, from, to }) => match draw.below(3) {
            0 => swap_two(weights, draw)?,
            1 => *group = *draw.of(&groups)?,
            _ => std::mem::swap(from, to),
        },
        Op::Transform(Transform { weights, from, to, .. }) => match draw.below(2) {
            0 => swap_two(weights, draw)?,
            _ => std::mem::swap(from, to),
        },
        Op::Update(Update { states, transformed: Some(_), .. }) if states.len() > 1 && draw.one_in(2) => {
            swap_two(states, draw)?;
        }
        Op::Update(Update { states, .. }) => {
            let state = draw.below(states.len());
            let UpdateOperand { master, kept, .. } = &mut states[state];
            change_lists(&plan.arena, kept, *master, draw)?;
        }
        // One of those that are cast is cast no longer, or all.
        Op::Adam(Adam { states, .. }) => {
            let chosen = if draw.one_in(2) { None } else { Some(draw.below(states.len())) };
            let is_chosen = |place: usize| chosen.is_none_or(|chosen| chosen == place);
            let chosen = states.iter_mut().enumerate().filter(|(place, _)| is_chosen(*place));
            let mut changes = false;
            for (_, AdamOperand { master, .. }) in chosen {
                if let MasterOperand::Cast { master: whole, .. } = *master {
                    (*master, changes) = (MasterOperand::Whole(whole), true);
                }
            }
            changes.then_some(())?;
        }
        Op::PartialCast(PartialCast { shards, .. }) | Op::FusedScale(FusedScale { shards, .. }) => {
            let shard = draw.below(shards.len());
            turned(&mut shards[shard].orientation);
        }
        _ => {
            if !draw.one_in(8) {
                return None;
            }
            plan.micro_batches = 1 + draw.below(4) as u32;
        }
    }
    restate_what_is_received(plan, task);
    Some(())
}

/// Counts that nobody brings, those of the other way, none at all, or slots of another size.
fn change_counts(counts: &mut Option<CountSlots>, draw: &mut Draw) -> Option<()> {
    let CountSlots { given, taken, declared } = counts.as_mut()?;
    match draw.below(4) {
        // To bring them once more would be no other thing.
        0 if !declared.known => declared.known = true,
        1 => {
            std::mem::swap(given, taken);
            std::mem::swap(&mut declared.given, &mut declared.taken);
        }
        2 => *counts = None,
        _ => declared.capacity += 1,
    }
    Some(())
}

/// Both lists in each other's place, or one more than the optimizer keeps, in any slot as large as this one.
fn change_lists(arena: &ArenaLayout, kept: &mut Vec<SlotId>, like: SlotId, draw: &mut Draw) -> Option<()> {
    let bytes = arena.region(like).bytes;
    let is_alike = |(slot, found): &(SlotId, &Slot)| found.region.bytes == bytes && *slot != like;
    let alike: Vec<SlotId> = arena.entries().filter(is_alike).map(|(slot, _)| slot).collect();
    match kept.len() {
        2 if draw.one_in(2) => kept.reverse(),
        _ => kept.push(*draw.of(&alike)?),
    }
    Some(())
}

/// Two in each other's place, if there are two.
fn swap_two<T>(list: &mut [T], draw: &mut Draw) -> Option<()> {
    let one = draw.below(list.len());
    let others: Vec<usize> = (0..list.len()).filter(|other| *other != one).collect();
    list.swap(one, *draw.of(&others)?);
    Some(())
}

/// Lets a closure read and write what ranks would give each other, in the collective's place.
pub(crate) fn run_as_closure(plan: &mut StepPlan, task: usize) -> Option<()> {
    let Op::CollectiveCall(CollectiveCall { call, from, to, .. }) = plan.tasks[task].op else { return None };
    let exchange = plan.calls[call.index()].collective?;
    let fault = plan.tasks.iter().find_map(|task| match task.op {
        Op::ClearFault(ClearFault { fault }) => Some(fault),
        _ => None,
    })?;
    let operand = |buffer, slot, access| Operand { role: OperandRole::Buffer(buffer), slot, access };
    let operands = vec![operand(exchange.from, from, Access::Read), operand(exchange.to, to, Access::Write)];
    let lane = plan.compute_lane();
    let closure = &mut plan.tasks[task];
    (closure.lane, closure.collective, closure.wire_bytes) = (lane, None, 0);
    closure.op = Op::Compute(Compute { call, fault, operands });
    renumber_collectives(plan);
    Some(())
}

/// Lets ranks do once more what they do in the collective, in place of a closure.
pub(crate) fn run_as_exchange(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let Op::CollectiveCall(CollectiveCall { kind, group, from, to, counts, .. }) = plan.tasks[task].op else {
        return None;
    };
    let is_closure = |other: &usize| matches!(plan.tasks[*other].op, Op::Compute(_));
    let closures: Vec<usize> = (0..plan.tasks.len()).filter(is_closure).collect();
    let replaced = *draw.of(&closures)?;
    let call = plan.tasks[replaced].op.call()?;
    let (lane, collective) = (plan.tasks[task].lane, plan.tasks[task].collective);
    let exchange = &mut plan.tasks[replaced];
    (exchange.lane, exchange.collective) = (lane, collective);
    exchange.op = Op::CollectiveCall(CollectiveCall { call, kind, group, from, to, counts });
    restate_what_is_received(plan, replaced);
    renumber_collectives(plan);
    Some(())
}

/// One of a list; none of none.
fn at_place<T>(list: &mut [T], place: usize) -> Option<&mut T> {
    let place = place.checked_rem(list.len())?;
    list.get_mut(place)
}

/// Lets an op speak of another weight or bucket of the plan; its operands stay.
pub(crate) fn change_subject(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let weights = plan.weights.layouts.len();
    let buckets = plan.weights.buckets.len();
    // What is of a rule has both, or some weights.
    let (names_weight, place) = (draw.one_in(2), draw.below(60));
    let StepPlan { tasks, weights: layouts, .. } = plan;
    // Of another shape the op would not fit its slots, which every backend refuses when it binds the plan.
    let mut rename = |weight: &mut WeightId| {
        let other = WeightId::at(draw.below(weights));
        let (mine, theirs) = (layouts.layout(*weight), layouts.layout(other));
        let fits = (mine.shard, mine.format) == (theirs.shard, theirs.format);
        fits.then(|| *weight = other)
    };
    match words(&mut tasks[task].op) {
        Words { bucket: Some(bucket), weights, .. } if weights.is_empty() || !names_weight => {
            *bucket = BucketId::at(draw.below(buckets));
            Some(())
        }
        Words { mut weights, .. } => rename(at_place(&mut weights, place)?),
    }
}
