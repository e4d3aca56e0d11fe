//! The planes that the uses of a program need, in program order.
//!
//! Law: a demand follows from the program, formats and what is kept; no policy and no duration enters. Replicated
//! weights are read where they are and demand nothing.

use std::collections::HashMap;

use crate::layout::{Content, WeightLayout, Weights, aligned};
use crate::model::{Call, Placement, Reuse, Use};
use crate::plan::Policy;
use crate::policy::{AcrossMicroBatches, Backward, Columnwise};
use warpweft_base::id::{GroupId, WeightId};
use warpweft_format::Orientation;

/// The planes one use of one call needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Demand<'a> {
    /// The stage of the call.
    pub(in super::super) stage: usize,
    /// The call.
    pub(in super::super) call: &'a Call,
    /// Which of the call's uses.
    pub(in super::super) position: usize,
    /// The weight.
    pub(in super::super) weight: WeightId,
    /// The group it is gathered with.
    pub(in super::super) group: Option<GroupId>,
    /// The weight's name.
    pub(in super::super) name: &'a str,
    /// The planes that are gathered for it: rowwise ones where columnwise ones are derived.
    pub(in super::super) orientation: Orientation,
    /// Does the use read columnwise planes that are derived from the gathered ones?
    pub(in super::super) derived: bool,
    /// Planes that are there from an earlier use are kept for this one, however long ago it was.
    pub(in super::super) keeps: bool,
    /// Nobody requested such planes to be gathered again: a policy may keep them as well.
    pub(in super::super) may_keep: bool,
    /// Bytes of the gathered planes in the arena.
    pub(in super::super) bytes: usize,
}

/// All demands of a program, in the order in which they are needed.
pub(in super::super) fn demands<'a>(
    calls: &'a [Call],
    weights: &'a Weights,
    policy: &Policy,
) -> Vec<Demand<'a>> {
    let mut demands = Vec::new();
    // The stage of the last use of all planes so far.
    let mut last_uses: HashMap<(WeightId, Orientation), usize> = HashMap::new();
    for (stage, call) in calls.iter().enumerate() {
        for (position, usage) in call.uses.iter().enumerate() {
            let layout = weights.layout(usage.weight);
            if layout.placement == Placement::Replicated {
                continue;
            }
            let derived = !layout.format.stored_orientations().contains(&usage.orientation);
            let orientation = if derived { Orientation::Rowwise } else { usage.orientation };
            let last_use = last_uses.insert((usage.weight, orientation), stage);
            demands.push(Demand {
                stage,
                call,
                position,
                weight: usage.weight,
                group: layout.group,
                name: &layout.name,
                orientation,
                derived,
                keeps: last_use.is_none_or(|before| keeps(policy, usage, layout, call, &calls[before])),
                may_keep: last_use.is_some() && usage.reuse.or(layout.reuse).is_none(),
                bytes: aligned(Content::Gathered(usage.weight, orientation).bytes(weights, |_| 0)),
            });
        }
    }
    demands
}

/// Are planes that `before` used kept for a use of `call`? As use or weight say, else as the policy says for
/// backward and for the next micro-batch.
fn keeps(policy: &Policy, usage: &Use, layout: &WeightLayout, call: &Call, before: &Call) -> bool {
    let derived = !layout.format.stored_orientations().contains(&usage.orientation);
    match usage.reuse.or(layout.reuse) {
        Some(reuse) => reuse == Reuse::Keep,
        None if before.micro_batch == call.micro_batch => {
            policy.backward == Backward::Keep || (derived && policy.columnwise == Columnwise::Keep)
        }
        None => policy.across_micro_batches == AcrossMicroBatches::Keep,
    }
}
