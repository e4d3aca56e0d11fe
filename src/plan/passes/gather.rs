//! Places the gather of every use of a sharded weight.
//!
//! Law (PL-2): every use has exactly one producing gather. The gather of use i is issued at the
//! stage of use i−n for prefetch depth n, and released by the end of the call before that stage;
//! at depth 0 that is the stage of use i itself. A gather that could begin no later than the stage
//! behind the weight's previous use is not made: the planes are still there, and a second copy
//! would only cost memory. Nor is one made where the planes are kept from the previous use.

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section, Supply};
use crate::config::{Backward, Columnwise};
use crate::format::{Orientation, PlaneSpec};
use crate::id::{CallId, WeightId};
use crate::layout::Content;
use crate::model::{Call, Placement, Reuse, Use};
use crate::op::Op;

/// The latest gather of some planes, which may still serve another use.
struct Held {
    supply: Supply,
    last_use: usize,
}

pub(in super::super) fn gather(draft: &mut Draft<'_>) {
    let mut stages_of_uses: Vec<usize> = Vec::new();
    let mut held: HashMap<(WeightId, Orientation), Held> = HashMap::new();
    for (stage, _, call) in draft.stages_of_calls() {
        for (position, usage) in call.uses.iter().enumerate() {
            let layout = draft.weights.layout(usage.weight);
            if layout.placement == Placement::Replicated {
                let slot = draft.slot(Content::Master(usage.weight));
                draft.supplies[stage][position] = Some(Supply { slot, stage: 0 });
                continue;
            }
            stages_of_uses.push(stage);
            let ahead = stages_of_uses.len().checked_sub(1 + draft.policy.depth as usize);
            let issue = ahead.map_or(0, |earlier| stages_of_uses[earlier]);
            let derived = !layout.format.stored_orientations().contains(&usage.orientation);
            let orientation = if derived { Orientation::Rowwise } else { usage.orientation };
            let supply = match held.get_mut(&(usage.weight, orientation)) {
                Some(gather)
                    if issue <= gather.last_use + 1 || keeps(draft, gather, call, usage, derived) =>
                {
                    gather.last_use = stage;
                    gather.supply
                }
                _ => {
                    let supply = add_gather(draft, usage.weight, orientation, stage, issue);
                    held.insert((usage.weight, orientation), Held { supply, last_use: stage });
                    supply
                }
            };
            draft.supplies[stage][position] = Some(supply);
        }
    }
}

/// Are the planes of `gather` kept for this use? As use or weight say, else as the policy says for backward and for
/// the next micro-batch.
fn keeps(draft: &Draft<'_>, gather: &Held, call: &Call, usage: &Use, derived: bool) -> bool {
    let policy = draft.policy;
    let in_micro_batch = draft.calls[gather.last_use].micro_batch == call.micro_batch;
    match usage.reuse.or(draft.weights.layout(usage.weight).reuse) {
        Some(reuse) => reuse == Reuse::Keep,
        None if in_micro_batch => {
            policy.backward == Backward::Keep || (derived && policy.columnwise == Columnwise::Keep)
        }
        None => policy.across_micro_batches == Backward::Keep,
    }
}

fn add_gather(
    draft: &mut Draft<'_>,
    weight: WeightId,
    orientation: Orientation,
    stage: usize,
    issue: usize,
) -> Supply {
    let name = draft.name(weight);
    let to = draft.transient(
        format!("{name} gathered {orientation} for {}", draft.calls[stage].label()),
        Content::Gathered(weight, orientation),
    );
    let layout = draft.weights.layout(weight);
    let planes = layout.shard_planes(orientation);
    let shard_bytes = planes.iter().map(PlaneSpec::bytes).fold(0, usize::saturating_add);
    let op = Op::AllGather { weight, orientation, from: draft.slot(Content::Shard(weight, orientation)), to };
    let peers = draft.weights.mesh.ranks() as usize - 1;
    let mut task = DraftTask::collective(op, name, Carrier::Gather, shard_bytes.saturating_mul(peers));
    task.release = issue.checked_sub(1).map(CallId::at);
    draft.add(issue, Section::Gathers, task);
    Supply { slot: to, stage: issue }
}
