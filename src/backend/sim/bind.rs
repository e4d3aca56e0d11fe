//! What every task of a plan costs.
//!
//! Law: an op costs what its accesses say ([`Op::accesses`]) and the cluster charges for it. Bytes of local ops are those of their slots: read or
//! written once, updated twice. Bytes of collectives are those of the parts that ranks exchange, alignment left out. No cost
//! depends on the rank.

use crate::backend::BackendError;
use crate::cluster::{Cluster, Links};
use crate::id::{LaneId, SlotId, TaskId};
use crate::layout::Binding;
use crate::model::Access;
use crate::op::Op;

/// Longest price, some 30 years: sums of prices stay numbers.
const LONGEST: f64 = 1e18;

/// One task, priced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priced {
    pub(super) lane: LaneId,
    /// Nanoseconds by itself.
    pub(super) nanoseconds: f64,
    /// Begins when the last rank arrives.
    pub(super) collective: bool,
}

/// Prices of all tasks of a binding, in issue order.
pub(super) fn price(
    binding: &Binding<'_>,
    cluster: &Cluster,
    links: &Links,
) -> Result<Vec<Priced>, BackendError> {
    let priced = |(position, (op, lane)): (usize, &(Op, LaneId))| {
        let nanoseconds = cost(binding, cluster, links, op).ok_or_else(|| BackendError::Unsupported {
            rank: binding.rank,
            task: TaskId::at(position),
            op: op.name(),
            reason: "it names a call, weight or slot that the plan does not have".to_owned(),
        })?;
        Ok(Priced { lane: *lane, nanoseconds: nanoseconds.min(LONGEST), collective: op.is_collective() })
    };
    binding.ops.iter().enumerate().map(priced).collect()
}

fn cost(binding: &Binding<'_>, cluster: &Cluster, links: &Links, op: &Op) -> Option<f64> {
    let ranks = u64::from(binding.weights.mesh.ranks());
    let bytes = |slot: SlotId| Some(binding.arena.slots.get(slot.index())?.region.bytes as u64);
    Some(match op {
        Op::Compute { call, .. } => cluster.call_ns(&binding.calls.get(call.index())?.cost),
        Op::AllGather { weight, orientation, .. } => {
            let planes = binding.weights.layouts.get(weight.index())?.shard_planes(*orientation);
            let part: u64 = planes.iter().map(|plane| plane.bytes() as u64).sum();
            links.gather_ns(part.saturating_mul(ranks))
        }
        Op::ReduceScatter { weight, .. } => {
            let part = binding.weights.layouts.get(weight.index())?.stored_elements() * size_of::<f32>();
            links.gather_ns((part as u64).saturating_mul(ranks))
        }
        Op::GatherRecords { from, .. } => links.gather_ns(bytes(*from)?.saturating_mul(ranks)),
        Op::AllReduce { pairs, .. } => {
            let each: Option<Vec<u64>> = pairs.iter().map(|(from, _)| bytes(*from)).collect();
            links.all_reduce_ns(each?.iter().sum())
        }
        // Only the rows beyond the weight's own are touched.
        Op::ZeroPadding { weight, .. } => {
            let shard = binding.weights.layouts.get(weight.index())?.shard;
            let rows = shard.padded_rows().saturating_sub(shard.shape.rows);
            cluster.memory_ns(rows.saturating_mul(shard.shape.cols * size_of::<f32>()) as u64)
        }
        _ => {
            let mut touched = 0u64;
            for (slot, access) in op.accesses() {
                let times = if access == Access::Update { 2 } else { 1 };
                touched = touched.saturating_add(bytes(slot)?.saturating_mul(times));
            }
            cluster.memory_ns(touched)
        }
    })
}
