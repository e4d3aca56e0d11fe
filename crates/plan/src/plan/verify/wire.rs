//! PL-6: what a task says it receives is what its op and the mesh imply.
//!
//! Law: in every collective each rank gets from each other rank of its group the same number of bytes: its
//! shard, its slice of a gradient, its rows of a matrix, its record, what an exchange of buffers gives to each, and of
//! values that are combined all, or two slices of all ([`op::given_to_each`]). Ops that are no collectives receive
//! nothing. How often bytes travel inside of a collective is otherwise the transport's business and no part of a plan.

use super::{Verdict, VerifyError};
use crate::op::{self, Op};
use crate::plan::StepPlan;
use warpweft_base::id::SlotId;

/// Checks every task. Every id points into the plan.
pub(super) fn check(plan: &StepPlan) -> Verdict<()> {
    for (id, task) in plan.entries() {
        let ranks = task.op.group().map_or(1, |group| plan.weights.mesh.size(group));
        let implied = from_each_peer(plan, &task.op, ranks).saturating_mul(ranks.saturating_sub(1) as usize);
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

fn from_each_peer(plan: &StepPlan, op: &Op, ranks: u32) -> usize {
    let sum = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0, usize::saturating_add);
    let content = |slot: &SlotId| {
        let content = plan.arena.slot(*slot).content;
        content.bytes(&plan.weights, |buffer| plan.buffers[buffer.index()].bytes())
    };
    match op {
        Op::AllGather { parts } => {
            sum(&mut parts.iter().map(|part| plan.weights.layout(part.weight).shard_bytes(part.orientation)))
        }
        Op::GatherChunk { chunk, .. } => chunk.end.saturating_sub(chunk.begin),
        Op::ReduceScatter { element, parts } | Op::ExchangeGradient { element, parts } => sum(&mut parts
            .iter()
            .map(|part| plan.weights.layout(part.weight).stored_elements().saturating_mul(element.bytes()))),
        Op::AllReduce { pairs, .. } => op::given_to_each(pairs.iter().map(|(from, _)| content(from)), ranks),
        Op::GatherRecords { from, .. } => content(from),
        Op::ExchangeRows { weights, .. } => weights.first().map_or(0, |first| {
            plan.weights.layout(*first).stored_elements().saturating_mul(size_of::<f32>())
        }),
        Op::ExchangeBuffer { kind, from, .. } => op::exchange_given_to_each(*kind, content(from), ranks),
        Op::Copy { .. }
        | Op::ClearFault { .. }
        | Op::ZeroPadding { .. }
        | Op::Compute { .. }
        | Op::PartialAmax { .. }
        | Op::FusedScale { .. }
        | Op::DelayedScale { .. }
        | Op::RecordAmax { .. }
        | Op::PartialCast { .. }
        | Op::Assemble { .. }
        | Op::Transpose { .. }
        | Op::Dequantize { .. }
        | Op::SumGradient { .. }
        | Op::RoundGradient { .. }
        | Op::AddGradient { .. }
        | Op::Accumulate { .. }
        | Op::GradNorm { .. }
        | Op::Vote { .. }
        | Op::Adam { .. }
        | Op::Prepare { .. }
        | Op::Transform { .. }
        | Op::Update { .. } => 0,
    }
}
