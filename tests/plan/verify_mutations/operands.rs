//! What an op says, edited: its operands, its weight, what it does with them.
//!
//! Law: an edit changes one word of one op and nothing around it.

use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::layout::{ArenaLayout, Content, Slot};
use warpweft_plan::model::{Access, ExchangeKind, Group};
use warpweft_plan::op::{
    DequantizePart, MasterOperand, Op, Operand, OperandRole, PrepareOperand, Reduction, SumTarget,
    UpdateOperand,
};
use warpweft_plan::plan::StepPlan;
use warpweft_testing::plan_books::{renumber_collectives, restate_what_is_received};
use warpweft_testing::random_programs::Draw;

/// Every slot an op names.
pub(crate) fn slots_of(op: &mut Op) -> Vec<&mut SlotId> {
    match op {
        Op::Copy { from, to }
        | Op::ExchangeBuffer { from, to, .. }
        | Op::ExchangeRows { from, to, .. }
        | Op::GatherRecords { from, to }
        | Op::RoundGradient { from, to, .. } => vec![from, to],
        Op::Transpose { parts } => parts.iter_mut().flat_map(|part| [&mut part.from, &mut part.to]).collect(),
        Op::AllGather { parts } | Op::Assemble { parts } => {
            parts.iter_mut().flat_map(|part| [&mut part.from, &mut part.to]).collect()
        }
        Op::GatherChunk { part, .. } => vec![&mut part.from, &mut part.to],
        Op::ReduceScatter { parts, .. } | Op::ExchangeGradient { parts, .. } => {
            parts.iter_mut().flat_map(|part| [&mut part.from, &mut part.to]).collect()
        }
        Op::SumGradient { parts, .. } => parts
            .iter_mut()
            .flat_map(|part| [&mut part.own, &mut part.into].into_iter().chain(&mut part.landed))
            .collect(),
        Op::AddGradient { from, into, .. } | Op::Accumulate { from, into, .. } => vec![from, into],
        Op::ClearFault { fault } => vec![fault],
        Op::ZeroPadding { gradient, .. } => vec![gradient],
        Op::Compute { fault, operands, .. } => {
            std::iter::once(fault).chain(operands.iter_mut().map(|operand| &mut operand.slot)).collect()
        }
        Op::PartialAmax { masters, block_amax, tensor_amax, vote, .. } => {
            masters.iter_mut().chain([block_amax, tensor_amax]).chain(vote).collect()
        }
        Op::AllReduce { pairs, .. } => pairs.iter_mut().flat_map(|(from, to)| [from, to]).collect(),
        Op::FusedScale { block_amax, tensor_amax, encode, tensor_scale, shards, vote, .. } => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            [block_amax, tensor_amax, encode, tensor_scale].into_iter().chain(shards).chain(vote).collect()
        }
        Op::DelayedScale { history, scale, tensor_scale, vote, .. } => {
            [scale, tensor_scale].into_iter().chain(history).chain(vote).collect()
        }
        Op::RecordAmax { tensor_amax, history, vote, .. } => {
            [tensor_amax, history].into_iter().chain(vote).collect()
        }
        Op::PartialCast { masters, encode, shards, vote, .. } => {
            let shards = shards.iter_mut().map(|shard| &mut shard.slot);
            masters.iter_mut().chain(encode).chain(shards).chain(vote).collect()
        }
        Op::Dequantize { parts } => parts
            .iter_mut()
            .flat_map(|part| {
                [&mut part.from, &mut part.to].into_iter().chain(&mut part.own).chain(&mut part.tensor_scale)
            })
            .collect(),
        Op::GradNorm { main_grads, fault, record } => {
            main_grads.iter_mut().map(|(_, slot)| slot).chain([fault, record]).collect()
        }
        Op::Vote { records, optimizer_step, gradient_scale, vote } => {
            vec![records, optimizer_step, gradient_scale, vote]
        }
        Op::Prepare { states, vote, hyperparameters, to, .. } => {
            let mut slots = vec![vote, hyperparameters, to];
            for state in states {
                slots.extend(std::iter::once(&mut state.main_grad).chain(&mut state.kept));
            }
            slots
        }
        Op::Transform { vote, from, to, .. } => vec![vote, from, to],
        Op::Update { states, vote, hyperparameters, transformed, .. } => {
            let mut slots = vec![vote, hyperparameters];
            slots.extend(transformed);
            for state in states {
                slots.extend([&mut state.master, &mut state.main_grad].into_iter().chain(&mut state.kept));
            }
            slots
        }
        Op::Adam { states, vote, hyperparameters, .. } => {
            let mut slots = vec![vote, hyperparameters];
            for state in states {
                match &mut state.master {
                    MasterOperand::Whole(master) => slots.push(master),
                    MasterOperand::Split { shard, remainder } => slots.extend([shard, remainder]),
                }
                slots.extend([&mut state.exp_avg, &mut state.exp_avg_sq, &mut state.main_grad]);
            }
            slots
        }
    }
}

/// Takes one of several operands away, or one that may be absent.
pub(crate) fn lose_operand(op: &mut Op, draw: &mut Draw) -> Option<()> {
    fn one<T>(list: &mut Vec<T>, draw: &mut Draw) -> Option<()> {
        (!list.is_empty()).then(|| drop(list.remove(draw.below(list.len()))))
    }
    let absent = |slot: &mut Option<SlotId>| slot.take().map(drop);
    match op {
        Op::Compute { operands, .. } => one(operands, draw),
        Op::PartialAmax { masters, vote, .. } => absent(vote).or_else(|| one(masters, draw)),
        Op::AllReduce { pairs, .. } => one(pairs, draw),
        Op::FusedScale { shards, vote, .. } if draw.one_in(2) || vote.is_none() => one(shards, draw),
        Op::FusedScale { vote, .. } | Op::RecordAmax { vote, .. } => absent(vote),
        Op::DelayedScale { history, vote, .. } => {
            if draw.one_in(2) {
                absent(history)
            } else {
                absent(vote)
            }
        }
        Op::PartialCast { masters, encode, shards, vote, .. } => match draw.below(4) {
            0 => one(masters, draw),
            1 => absent(encode),
            2 => absent(vote),
            _ => one(shards, draw),
        },
        Op::Transpose { parts } if parts.len() > 1 => one(parts, draw),
        Op::Dequantize { parts } if parts.len() > 1 && draw.one_in(2) => one(parts, draw),
        Op::Dequantize { parts } if draw.one_in(2) => absent(&mut parts.first_mut()?.own),
        Op::Dequantize { parts } => absent(&mut parts.first_mut()?.tensor_scale),
        Op::AllGather { parts } | Op::Assemble { parts } if parts.len() > 1 => one(parts, draw),
        Op::ReduceScatter { parts, .. } | Op::ExchangeGradient { parts, .. } if parts.len() > 1 => {
            one(parts, draw)
        }
        Op::SumGradient { parts, .. } if parts.len() > 1 && draw.one_in(2) => one(parts, draw),
        Op::SumGradient { parts, .. } => absent(&mut parts.first_mut()?.landed),
        Op::GradNorm { main_grads, .. } => one(main_grads, draw),
        Op::Adam { states, .. } => one(states, draw),
        Op::Prepare { states, .. } if draw.one_in(2) => one(states, draw),
        Op::Prepare { states, .. } => one(&mut states.first_mut()?.kept, draw),
        Op::ExchangeRows { weights, .. } | Op::Transform { weights, .. } => one(weights, draw),
        Op::Update { transformed, .. } if transformed.is_some() && draw.one_in(3) => absent(transformed),
        Op::Update { states, .. } if draw.one_in(2) => one(states, draw),
        Op::Update { states, .. } => one(&mut states.first_mut()?.kept, draw),
        _ => None,
    }
}

/// Changes what an op does with its operands: which call runs, what begins a sum, which side of a weight,
/// what is combined how, and with whom.
pub(crate) fn change_phase(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let calls: Vec<_> = plan.tasks.iter().filter_map(|task| task.op.call()).collect();
    let other = |element| if element == ElementType::F32 { ElementType::Bf16 } else { ElementType::F32 };
    let turned = |orientation: &mut Orientation| {
        *orientation = match orientation {
            Orientation::Rowwise => Orientation::Columnwise,
            Orientation::Columnwise => Orientation::Rowwise,
        };
    };
    match &mut plan.tasks[task].op {
        Op::Compute { call, .. } => *call = *draw.of(&calls)?,
        Op::ExchangeBuffer { call, kind, group, from, to } => match draw.below(4) {
            0 => *call = *draw.of(&calls)?,
            1 => {
                *kind = draw.among(&[
                    ExchangeKind::AllGather,
                    ExchangeKind::AllToAll,
                    ExchangeKind::Sum,
                    ExchangeKind::Max,
                ]);
            }
            2 => *group = draw.among(&[Group::Shard, Group::Replicate, Group::World]),
            _ => std::mem::swap(from, to),
        },
        Op::Accumulate { first, .. } => *first = !*first,
        Op::AllGather { parts } | Op::Assemble { parts } => {
            let part = draw.below(parts.len());
            turned(&mut parts[part].orientation);
        }
        Op::GatherChunk { part, chunk } => match draw.below(4) {
            0 => turned(&mut part.orientation),
            1 => chunk.begin += 64,
            2 => chunk.begin = chunk.begin.saturating_sub(64),
            _ => chunk.end -= 64.min(chunk.end - chunk.begin - 1),
        },
        Op::ReduceScatter { element, .. } | Op::ExchangeGradient { element, .. } => {
            *element = other(*element);
        }
        Op::SumGradient { element, parts } => {
            let part = draw.below(parts.len());
            let targets = [SumTarget::Rows, SumTarget::First, SumTarget::More];
            match draw.below(3) {
                0 => *element = other(*element),
                _ => {
                    let others: Vec<_> =
                        targets.into_iter().filter(|target| *target != parts[part].target).collect();
                    parts[part].target = *draw.of(&others)?;
                }
            }
        }
        Op::Dequantize { parts } => {
            let part = draw.below(parts.len());
            let DequantizePart { weight, orientation, own, .. } = parts[part];
            match draw.below(3) {
                0 => turned(&mut parts[part].orientation),
                1 => parts[part].values = other(parts[part].values),
                _ if own.is_some() => parts[part].own = None,
                _ => parts[part].own = Some(plan.arena.find(Content::Shard(weight, orientation))?),
            }
        }
        Op::AllReduce { reduction, group, .. } => match draw.below(2) {
            0 => *reduction = if *reduction == Reduction::Sum { Reduction::Max } else { Reduction::Sum },
            _ => *group = draw.among(&[Group::Shard, Group::Replicate, Group::World]),
        },
        Op::Prepare { states, .. } => {
            let state = draw.below(states.len());
            let PrepareOperand { kept, main_grad, .. } = &mut states[state];
            change_lists(&plan.arena, kept, *main_grad, draw)?;
        }
        Op::ExchangeRows { weights, from, to } => match draw.below(2) {
            0 => swap_two(weights, draw)?,
            _ => std::mem::swap(from, to),
        },
        Op::Transform { weights, from, to, .. } => match draw.below(2) {
            0 => swap_two(weights, draw)?,
            _ => std::mem::swap(from, to),
        },
        Op::Update { states, transformed: Some(_), .. } if states.len() > 1 && draw.one_in(2) => {
            swap_two(states, draw)?;
        }
        Op::Update { states, .. } => {
            let state = draw.below(states.len());
            let UpdateOperand { master, kept, .. } = &mut states[state];
            change_lists(&plan.arena, kept, *master, draw)?;
        }
        Op::PartialCast { shards, .. } | Op::FusedScale { shards, .. } => {
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

/// Both lists in each other's place, or one more than the rule keeps, in any slot as large as this one.
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

/// Lets a closure read and write what ranks would give each other, in the exchange's place.
pub(crate) fn run_as_closure(plan: &mut StepPlan, task: usize) -> Option<()> {
    let Op::ExchangeBuffer { call, from, to, .. } = plan.tasks[task].op else { return None };
    let exchange = plan.calls[call.index()].exchange?;
    let fault = plan.tasks.iter().find_map(|task| match task.op {
        Op::ClearFault { fault } => Some(fault),
        _ => None,
    })?;
    let operand = |buffer, slot, access| Operand { role: OperandRole::Buffer(buffer), slot, access };
    let operands = vec![operand(exchange.from, from, Access::Read), operand(exchange.to, to, Access::Write)];
    let lane = plan.compute_lane();
    let closure = &mut plan.tasks[task];
    (closure.lane, closure.collective, closure.wire_bytes) = (lane, None, 0);
    closure.op = Op::Compute { call, fault, operands };
    renumber_collectives(plan);
    Some(())
}

/// Lets ranks do once more what they do in the exchange, in place of a closure.
pub(crate) fn run_as_exchange(plan: &mut StepPlan, task: usize, draw: &mut Draw) -> Option<()> {
    let Op::ExchangeBuffer { kind, group, from, to, .. } = plan.tasks[task].op else { return None };
    let is_closure = |other: &usize| matches!(plan.tasks[*other].op, Op::Compute { .. });
    let closures: Vec<usize> = (0..plan.tasks.len()).filter(is_closure).collect();
    let replaced = *draw.of(&closures)?;
    let call = plan.tasks[replaced].op.call()?;
    let (lane, collective) = (plan.tasks[task].lane, plan.tasks[task].collective);
    let exchange = &mut plan.tasks[replaced];
    (exchange.lane, exchange.collective) = (lane, collective);
    exchange.op = Op::ExchangeBuffer { call, kind, group, from, to };
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
    match &mut tasks[task].op {
        Op::AllGather { parts } | Op::Assemble { parts } => return rename(&mut parts.first_mut()?.weight),
        Op::GatherChunk { part, .. } => return rename(&mut part.weight),
        Op::ReduceScatter { parts, .. } | Op::ExchangeGradient { parts, .. } => {
            return rename(&mut parts.first_mut()?.weight);
        }
        Op::SumGradient { parts, .. } => return rename(&mut parts.first_mut()?.weight),
        Op::Transpose { parts } => return rename(&mut parts.first_mut()?.weight),
        Op::Dequantize { parts } => return rename(&mut parts.first_mut()?.weight),
        Op::ZeroPadding { weight, .. }
        | Op::RoundGradient { weight, .. }
        | Op::AddGradient { weight, .. }
        | Op::Accumulate { weight, .. } => return rename(weight),
        Op::ExchangeRows { weights, .. } => return rename(at_place(weights, place)?),
        Op::Transform { weights, .. } if names_weight => return rename(at_place(weights, place)?),
        Op::Prepare { states, .. } if names_weight => return rename(&mut at_place(states, place)?.weight),
        Op::Update { states, .. } if names_weight => return rename(&mut at_place(states, place)?.weight),
        Op::PartialAmax { bucket, .. }
        | Op::DelayedScale { bucket, .. }
        | Op::RecordAmax { bucket, .. }
        | Op::FusedScale { bucket, .. }
        | Op::PartialCast { bucket, .. }
        | Op::Adam { bucket, .. }
        | Op::Prepare { bucket, .. }
        | Op::Transform { bucket, .. }
        | Op::Update { bucket, .. } => *bucket = BucketId::at(draw.below(buckets)),
        _ => return None,
    }
    Some(())
}
