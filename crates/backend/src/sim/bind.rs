//! The price of every task of a plan.
//!
//! Law: prices come from [`warpweft_plan::cluster`]; nothing is priced here.

use crate::BackendError;
use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::cluster::{Prices, Reach, Work};
use warpweft_plan::layout::Binding;
use warpweft_plan::model::Group;
use warpweft_plan::op::Op;

/// One task, priced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priced {
    pub(super) lane: LaneId,
    /// Nanoseconds by itself.
    pub(super) nanoseconds: f64,
    /// For a collective, the group of ranks whose last arrival begins it, and the links it takes.
    pub(super) collective: Option<(Group, Reach)>,
}

/// Prices of all tasks of a binding, in issue order.
pub(super) fn price(binding: &Binding<'_>, prices: &Prices) -> Result<Vec<Priced>, BackendError> {
    let work = Work { calls: binding.calls, slots: &binding.arena.slots, weights: binding.weights };
    let priced = |(position, (op, lane)): (usize, &(Op, LaneId))| {
        let nanoseconds = prices.of(&work, op).ok_or_else(|| BackendError::Unsupported {
            rank: binding.rank,
            task: TaskId::at(position),
            op: op.name(),
            reason: "it names a call, weight or slot that the plan does not have".to_owned(),
        })?;
        let collective = op.group().map(|group| (group, prices.reach_of(group)));
        Ok(Priced { lane: *lane, nanoseconds, collective })
    };
    binding.ops.iter().enumerate().map(priced).collect()
}
