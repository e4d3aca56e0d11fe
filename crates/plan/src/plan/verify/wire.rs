//! PL-6: what a task says it receives is what its op and the mesh imply.
//!
//! Law: in every collective each rank gets from each other rank of its group the same number of bytes, those that the
//! op says it moves ([`Op::moves`](crate::op::Op::moves)) where every slot is as large as its content. Ops that are no
//! collectives receive nothing. How often bytes travel inside of a collective is otherwise the transport's business
//! and no part of a plan.

use super::{Verdict, VerifyError};
use crate::layout::{SizesOf, Slot};
use crate::plan::StepPlan;
use warpweft_base::id::BufferId;

/// Checks every task. Every id points into the plan.
pub(super) fn check(plan: &StepPlan) -> Verdict<()> {
    let buffer = |id: BufferId| plan.buffers[id.index()].bytes();
    let bytes = |slot: &Slot| slot.content.bytes(&plan.weights, buffer);
    let sizes = SizesOf { weights: &plan.weights, slots: &plan.arena.slots, bytes };
    for (id, task) in plan.entries() {
        let ranks = task.op.group().map_or(1, |group| plan.weights.mesh.size(group));
        let moves = task.op.group().and_then(|_| task.op.moves(&sizes));
        let from_each_peer = moves.map_or(0, |moves| moves.given_to_each(ranks));
        let implied = from_each_peer.saturating_mul(ranks.saturating_sub(1) as usize);
        if task.wire_bytes != implied {
            return Err(Box::new(VerifyError::Bytes {
                subject: plan.describe(id),
                problem: format!(
                    "says that it receives {} bytes, but its op receives {implied} among {ranks} ranks",
                    task.wire_bytes
                ),
                remedy: "count what every other rank sends it; prices and traces are made from this number"
                    .into(),
            }));
        }
    }
    Ok(())
}
