//! The choice of a timetable for a planning request.
//!
//! Law: a hand schedule is taken as it is, a policy without durations makes its own, and `auto` chooses among
//! timetables that were placed and timed as plans are. Nothing here makes tasks or addresses.

use std::collections::HashMap;

use super::dependences::dependences;
use super::fences::fences;
use super::forecast::{Timed, spans};
use super::place::{Placed, Request, place};
use super::prefetch::{Demand, Pace, Reductions, Timetable, Trial, search};
use super::{Costs, GatherStart, PlanError};
use crate::cluster::Work;
use crate::layout::{ArenaLayout, Content, LaneKind};
use crate::model::Group;
use crate::op::{
    AddGradient, AllGather, AllReduce, Assemble, ExchangeGradient, GatherChunk, GatherPart, Op,
    RoundGradient, Transpose,
};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::Orientation;

pub(super) fn timetable(request: &Request<'_>, demands: &[Demand<'_>]) -> Result<Timetable, PlanError> {
    match (request.issues, request.policy.prefetch, request.costs) {
        (Some(issues), ..) => by_hand(request, issues, demands),
        (None, GatherStart::Auto, Some(costs)) => auto(request, demands, costs),
        (None, prefetch, _) => Timetable::of(prefetch, request.policy.reduce_delay as usize, demands),
    }
}

fn by_hand(request: &Request<'_>, issues: &[usize], demands: &[Demand<'_>]) -> Result<Timetable, PlanError> {
    let wrong = |problem| PlanError::Schedule { program: request.name.to_owned(), problem };
    if issues.len() != demands.len() {
        let (found, needed) = (issues.len(), demands.len());
        return Err(wrong(format!(
            "has {found} entries; give one for each of the {needed} uses of sharded weights"
        )));
    }
    let issues: Vec<usize> =
        issues.iter().zip(demands).map(|(issue, demand)| *issue.min(&demand.stage)).collect();
    if let Some(number) = issues.windows(2).position(|pair| pair[0] > pair[1]) {
        let (first, second) = (issues[number], issues[number + 1]);
        return Err(wrong(format!(
            "goes back from call {first} to call {second} at use {}; a communicator serves uses in program order",
            number + 1
        )));
    }
    Ok(Timetable::by_hand(demands, issues, request.policy.reduce_delay as usize))
}

fn auto(request: &Request<'_>, demands: &[Demand<'_>], costs: &Costs) -> Result<Timetable, PlanError> {
    let reference = Timetable::of(GatherStart::Depth(1), Reductions::TWO_CALLS.delay, demands)?;
    // What is over the budget is requested later here, before holds are cut back for it.
    let free = Request { waits: false, ..*request };
    let placed = place(&free, request.policy, demands, &reference)?;
    let pace = pace(request, demands, costs, &placed, reference.reductions.delay);
    let mut attempt = |timetable: &Timetable| {
        let placed = place(&free, request.policy, demands, timetable)?;
        Ok(Trial { bytes: placed.transient_bytes, step: expected(request, costs, placed) })
    };
    search(demands, &pace, request.policy.budget, &mut attempt)
}

/// The price of every task of a draft.
fn prices(request: &Request<'_>, costs: &Costs, placed: &Placed) -> Vec<f64> {
    let work = Work { calls: request.calls, slots: &placed.slots, weights: request.weights };
    placed.tasks.iter().map(|task| costs.of(&work, &task.op, &task.subject, task.wire_bytes)).collect()
}

/// What a step is expected to take, nanoseconds.
fn expected(request: &Request<'_>, costs: &Costs, placed: Placed) -> u64 {
    let nanoseconds = prices(request, costs, &placed);
    let reaches: Vec<_> = placed.tasks.iter().map(|task| costs.reach(&task.op)).collect();
    let Placed { accesses, slots, lanes, lanes_of, releases, transient_bytes, .. } = placed;
    let arena = ArenaLayout { slots, resident_bytes: 0, transient_bytes };
    let fences = fences(&lanes_of, lanes.len(), &dependences(&accesses, &arena), &releases);
    let timed: Vec<Timed<'_>> = lanes_of
        .iter()
        .zip(&nanoseconds)
        .zip(&fences.waits)
        .zip(reaches)
        .map(|(((lane, time), waits), reach)| Timed { lane: *lane, nanoseconds: *time, reach, waits })
        .collect();
    spans(&timed, &lanes, costs).iter().map(|span| span.end).max().unwrap_or(0)
}

/// What the calls and what is between them take.
fn pace(request: &Request<'_>, demands: &[Demand<'_>], costs: &Costs, placed: &Placed, delay: usize) -> Pace {
    let contention = costs.contention();
    let nanoseconds = prices(request, costs, placed);
    let calls = request.calls.len();
    let kinds: Vec<LaneKind> = placed.lanes.iter().map(|lane| lane.kind).collect();
    let mut gathers: HashMap<(WeightId, Orientation), f64> = HashMap::new();
    // Per weight, and whether the use reads columnwise planes that are derived: what the quantize lane does
    // of them before a call can read them.
    let mut leads: HashMap<(WeightId, bool), f64> = HashMap::new();
    let beside_calls = |time: f64| time * contention.quantize_beside_compute;
    // What was summed once may go over other links than gathers do, and then hold none of them up.
    let beside_gathers = |op: &Op| request.policy.communicators == 1 || costs.meets_gathers(op);
    let mut pace = Pace {
        calls: vec![0.0; calls],
        reductions: vec![0.0; calls],
        one_link: request.policy.communicators == 1 || costs.nearly_one_link(),
        ..Pace::default()
    };
    let mut assembled: HashMap<SlotId, f64> = HashMap::new();
    // The call that wrote what lies in a slot, or the last of those whose gradients were added there.
    let mut completed: HashMap<SlotId, usize> = HashMap::new();
    let mut stage = 0;
    for ((task, time), lane) in placed.tasks.iter().zip(nanoseconds).zip(&placed.lanes_of) {
        let beside = time * contention.collective_beside_compute;
        match (&task.op, kinds[lane.index()]) {
            // It is on its way before planes are requested.
            (Op::AllGather(AllGather { group, .. }), _) if group.is_of_copies() => {}
            (Op::AllGather(AllGather { parts, .. }), _) => {
                let bytes = |part: &GatherPart| placed.slots[part.to.index()].region.bytes as f64;
                let all: f64 = parts.iter().map(bytes).sum();
                for part in parts {
                    let share = if all > 0.0 { bytes(part) / all } else { 0.0 };
                    gathers.insert((part.weight, part.orientation), beside * share);
                }
            }
            (Op::GatherChunk(GatherChunk { part, chunk, .. }), _) => {
                let time_of = gathers.entry((part.weight, part.orientation)).or_insert(0.0);
                *time_of = if chunk.begin == 0 { beside } else { *time_of + beside };
            }
            (Op::Assemble(Assemble { parts }), LaneKind::Quantize) => {
                assembled.extend(parts.iter().map(|part| (part.to, beside_calls(time))));
            }
            (Op::Transpose(Transpose { parts }), _) => {
                for part in parts {
                    let before = assembled.remove(&part.from).unwrap_or(0.0);
                    leads.insert((part.weight, true), before + beside_calls(time));
                }
            }
            (op, LaneKind::Compute) if stage < calls => {
                pace.calls[stage] += time;
                for (slot, _) in op.accesses().into_iter().filter(|(_, access)| access.reads()) {
                    if let (Some(before), Content::Gathered(weight, _)) =
                        (assembled.remove(&slot), placed.slots[slot.index()].content)
                    {
                        leads.insert((weight, false), before);
                    }
                }
            }
            (Op::ExchangeGradient(ExchangeGradient { group, parts, .. }), _) if !is_further(*group) => {
                let made = parts.iter().filter_map(|part| completed.get(&part.from)).max();
                pace.reductions[made.copied().unwrap_or(0)] += beside;
            }
            // Calls wait for it as they wait for each other.
            (Op::CollectiveCall(_), _) if stage < calls => pace.calls[stage] += time,
            (Op::AllReduce(AllReduce { group, .. }), _) if !group.is_of_copies() => {}
            (op @ (Op::ExchangeGradient(_) | Op::AllReduce(_)), _) if !beside_gathers(op) => {}
            (Op::ReduceScatter(_) | Op::ExchangeGradient(_) | Op::AllReduce(_), _) => {
                // Of the reference, in which reductions stand so many calls later.
                let made = stage.saturating_sub(delay + 1).min(calls.saturating_sub(1));
                pace.reductions[made] += beside;
            }
            _ => {}
        }
        let by_call = match &task.op {
            Op::Compute(_) => Some(stage),
            // Made of what an earlier call wrote.
            Op::AddGradient(AddGradient { from, .. }) | Op::RoundGradient(RoundGradient { from, .. }) => {
                completed.get(from).copied()
            }
            _ => None,
        };
        if let Some(call) = by_call {
            let writes = task.op.accesses().into_iter().filter(|(_, access)| access.writes());
            completed.extend(writes.map(|(slot, _)| (slot, call)));
        }
        stage += usize::from(task.op.call().is_some());
    }
    for demand in demands {
        pace.gathers.push(gathers.get(&(demand.weight, demand.orientation)).copied().unwrap_or(0.0));
        let lead = leads.get(&(demand.weight, demand.derived));
        pace.leads.push(lead.copied().unwrap_or(0.0));
    }
    pace
}

/// Are these the ranks of a level above the first?
const fn is_further(group: Group) -> bool {
    match group.level() {
        Some(level) => level.index() > 0,
        None => group.is_of_copies(),
    }
}
