//! Makes a task of every gather that is needed, where the timetable asks for it.
//!
//! Law (PL-2): every use has exactly one producing gather; what is gathered for one call of one group is one task. A gather asked for at stage s is released by the end of the
//! call before s. A gather that could begin no later than the stage behind the weight's previous use is not made: the
//! planes are still there, and a second copy would only cost memory. Nor is one made where the planes are kept. Which planes are needed, and when each is
//! asked for, is decided in [`super::super::prefetch`].

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section, Supply};
use super::super::prefetch::{Demand, Timetable};
use super::{of_group, peers};
use crate::format::{Orientation, PlaneSpec};
use crate::id::{CallId, GroupId, WeightId};
use crate::layout::Content;
use crate::model::{Group, Placement};
use crate::op::{GatherPart, Op};

/// The latest gather of some planes, which may still serve another use.
struct Held {
    supply: Supply,
    last_use: usize,
}

/// One gather in the making.
struct Collected<'a> {
    group: Option<GroupId>,
    issue: usize,
    name: &'a str,
    parts: Vec<GatherPart>,
}

/// `timetable` has one stage for every demand.
pub(in super::super) fn gather(draft: &mut Draft<'_>, demands: &[Demand<'_>], timetable: &Timetable) {
    replicated(draft);
    let mut held: HashMap<(WeightId, Orientation), Held> = HashMap::new();
    let mut timed = timetable.issues.iter().zip(&timetable.kept);
    for of_call in demands.chunk_by(|one, other| one.stage == other.stage) {
        let mut collected: Vec<Collected<'_>> = Vec::new();
        for (demand, (issue, kept)) in of_call.iter().zip(&mut timed) {
            let (stage, planes) = (demand.stage, (demand.weight, demand.orientation));
            let supply = match held.get_mut(&planes) {
                Some(gather) if demand.keeps || *kept || *issue <= gather.last_use + 1 => {
                    gather.last_use = stage;
                    gather.supply
                }
                _ => {
                    let supply = collect(draft, &mut collected, demand, *issue);
                    held.insert(planes, Held { supply, last_use: stage });
                    supply
                }
            };
            draft.supplies[stage][demand.position] = Some(supply);
        }
        for gather in collected {
            add(draft, gather);
        }
    }
}

/// Replicated weights are read where they are.
fn replicated(draft: &mut Draft<'_>) {
    for (stage, _, call) in draft.stages_of_calls() {
        for (position, usage) in call.uses.iter().enumerate() {
            if draft.weights.layout(usage.weight).placement == Placement::Replicated {
                let slot = draft.slot(Content::Master(usage.weight));
                draft.supplies[stage][position] = Some(Supply { slot, stage: 0 });
            }
        }
    }
}

/// Puts the planes of a demand into its group's gather, or into one of their own.
fn collect<'a>(
    draft: &mut Draft<'_>,
    collected: &mut Vec<Collected<'a>>,
    demand: &Demand<'a>,
    issue: usize,
) -> Supply {
    let Demand { weight, orientation, name, call, group, .. } = *demand;
    let to = draft.transient(
        format!("{name} gathered {orientation} for {}", call.label()),
        Content::Gathered(weight, orientation),
    );
    let part = GatherPart { weight, orientation, from: draft.slot(Content::Shard(weight, orientation)), to };
    match collected.iter_mut().find(|other| group.is_some() && other.group == group) {
        Some(other) => {
            other.parts.push(part);
            Supply { slot: to, stage: other.issue }
        }
        None => {
            collected.push(Collected { group, issue, name, parts: vec![part] });
            Supply { slot: to, stage: issue }
        }
    }
}

fn add(draft: &mut Draft<'_>, gather: Collected<'_>) {
    let Collected { issue, name, parts, .. } = gather;
    let shard = |part: &GatherPart| {
        let planes = draft.weights.layout(part.weight).shard_planes(part.orientation);
        planes.iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add)
    };
    let bytes = parts.iter().map(shard).fold(0, usize::saturating_add);
    let peers = peers(draft.weights.mesh, Group::Shard);
    let subject = of_group(name, parts.len());
    let op = Op::AllGather { parts };
    let mut task = DraftTask::collective(op, subject, Carrier::Gather, bytes.saturating_mul(peers));
    task.release = issue.checked_sub(1).map(CallId::at);
    draft.add(issue, Section::Gathers, task);
}
