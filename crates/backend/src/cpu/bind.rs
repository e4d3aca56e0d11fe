//! A plan made ready to run on one rank's lanes.
//!
//! Law: a plan runs in a world of its own mesh. In another world with the same number of ranks it would run
//! too, and sum over other ranks than it means.

use std::sync::Arc;

use super::bound::{BoundPlan, BoundTask, Event, Times};
use crate::local::resolve;
use crate::{BackendError, within};
use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::layout::Binding;
use warpweft_plan::model::Mesh;
use warpweft_plan::op::Op;

/// Binds every op of a plan, in a world of `mesh`, to an arena of `arena_bytes` bytes.
///
/// # Errors
/// [`BackendError::Mesh`] for a plan of another mesh, [`BackendError::Unsupported`] for an op that cannot run.
pub(super) fn bind(
    binding: &Binding<'_>,
    mesh: Mesh,
    arena_bytes: usize,
) -> Result<Arc<BoundPlan>, BackendError> {
    within(binding, mesh)?;
    let ops = resolve(binding, arena_bytes)?;
    let tasks = ops.into_iter().zip(binding.ops).enumerate().map(|(position, (op, (named, _)))| BoundTask {
        id: TaskId::at(position),
        name: named.name(),
        op,
        times: Times::default(),
    });
    let tasks = tasks.collect();
    let events = (0..binding.events).map(|_| Event::default()).collect();
    Ok(Arc::new(BoundPlan { tasks, events, issued: issued(binding), replayed: replayed(binding) }))
}

/// Commands one issued step puts on each lane, at most: every task, its record, and a wait for each foreign
/// lane.
fn issued(binding: &Binding<'_>) -> Vec<(LaneId, usize)> {
    let mut tasks: Vec<(LaneId, usize)> = Vec::new();
    for (_, lane) in binding.ops {
        match tasks.iter_mut().find(|(other, _)| other == lane) {
            Some((_, count)) => *count += 1,
            None => tasks.push((*lane, 1)),
        }
    }
    let each = tasks.len() + 1;
    tasks.iter().map(|(lane, count)| (*lane, count * each)).collect()
}

/// Commands one replayed step puts on any lane, at most. If all its calls are dynamic, that is each of them
/// and a segment before and after it.
fn replayed(binding: &Binding<'_>) -> usize {
    2 * binding.ops.iter().filter(|(op, _)| matches!(op, Op::Compute(_))).count() + 1
}
