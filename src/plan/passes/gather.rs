//! Makes a task of every gather that is needed, where the timetable asks for it.
//!
//! Law (PL-2): every use has exactly one producing gather. A gather asked for at stage s is released by the end of the
//! call before s. A gather that could begin no later than the stage behind the weight's previous use is not made: the
//! planes are still there, and a second copy would only cost memory. Nor is one made where the planes are kept. Which planes are needed, and when each is
//! asked for, is decided in [`super::super::prefetch`].

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section, Supply};
use super::super::prefetch::Demand;
use crate::format::{Orientation, PlaneSpec};
use crate::id::{CallId, WeightId};
use crate::layout::Content;
use crate::model::Placement;
use crate::op::Op;

/// The latest gather of some planes, which may still serve another use.
struct Held {
    supply: Supply,
    last_use: usize,
}

/// `issues` has one stage for every demand.
pub(in super::super) fn gather(draft: &mut Draft<'_>, demands: &[Demand<'_>], issues: &[usize]) {
    replicated(draft);
    let mut held: HashMap<(WeightId, Orientation), Held> = HashMap::new();
    for (demand, issue) in demands.iter().zip(issues) {
        let (stage, planes) = (demand.stage, (demand.weight, demand.orientation));
        let supply = match held.get_mut(&planes) {
            Some(gather) if demand.keeps || *issue <= gather.last_use + 1 => {
                gather.last_use = stage;
                gather.supply
            }
            _ => {
                let supply = add_gather(draft, demand, *issue);
                held.insert(planes, Held { supply, last_use: stage });
                supply
            }
        };
        draft.supplies[stage][demand.position] = Some(supply);
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

fn add_gather(draft: &mut Draft<'_>, demand: &Demand<'_>, issue: usize) -> Supply {
    let Demand { weight, orientation, name, call, .. } = *demand;
    let to = draft.transient(
        format!("{name} gathered {orientation} for {}", call.label()),
        Content::Gathered(weight, orientation),
    );
    let planes = draft.weights.layout(weight).shard_planes(orientation);
    let shard_bytes = planes.iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add);
    let op = Op::AllGather { weight, orientation, from: draft.slot(Content::Shard(weight, orientation)), to };
    let peers = draft.weights.mesh.ranks() as usize - 1;
    let mut task = DraftTask::collective(op, name, Carrier::Gather, shard_bytes.saturating_mul(peers));
    task.release = issue.checked_sub(1).map(CallId::at);
    draft.add(issue, Section::Gathers, task);
    Supply { slot: to, stage: issue }
}
