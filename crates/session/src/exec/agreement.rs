//! What ranks compare before they run anything: their plans, and which optimizer updates the weights.
//!
//! Laws:
//! - **PL-1** Ranks compare fingerprints of plans before they reserve memory.
//! - **EX-2** Plans do not name the optimizer: those of two that keep as many lists of state are equal. So processes
//!   compare it by its name and the names of its states, as soon as they have it. Ranks of one process have done so by
//!   then.

use std::sync::Arc;

use super::world::{failed, misfit};
use super::{ExecError, World};
use crate::checkpoint::OptimizerIdentity;
use warpweft_backend::rendezvous::Topic;
use warpweft_base::id::RankId;
use warpweft_plan::plan::StepPlan;

/// All ranks have as many plans, or they would wait for each other's.
pub(super) fn agree_on_count(world: &World, rank: RankId, plans: usize) -> Result<(), ExecError> {
    let all = world.exchange(rank, plans as u64)?;
    match all.iter().position(|other| *other != plans as u64) {
        None => Ok(()),
        Some(other) => Err(ExecError::PlansDiffer {
            program: "the session".to_owned(),
            fingerprints: format!("{rank} has {plans} plans, {} has {}", RankId::at(other), all[other]),
        }),
    }
}

/// All ranks have this plan.
pub(super) fn agree_on_plan(world: &World, rank: RankId, plan: &StepPlan) -> Result<(), ExecError> {
    let all = world.exchange(rank, plan.fingerprint())?;
    if all.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let listed: Vec<String> = all
        .iter()
        .enumerate()
        .map(|(rank, fingerprint)| format!("{} has {fingerprint:016x}", RankId::at(rank)))
        .collect();
    Err(ExecError::PlansDiffer { program: plan.name.clone(), fingerprints: listed.join(", ") })
}

/// All processes have this optimizer.
pub(super) fn agree_on_optimizer(
    world: &World,
    rank: RankId,
    optimizer: &OptimizerIdentity,
) -> Result<(), ExecError> {
    if world.rendezvous().is_whole() {
        return Ok(());
    }
    let unreadable = || failed(rank, misfit("the name of an optimizer"));
    let text = optimizer.text().map_err(|_| unreadable())?;
    let all = world.rendezvous().exchange(rank, Topic::Agreement, text.as_bytes());
    let all = all.map_err(|error| failed(rank, error))?;
    let read = |bytes: &Arc<[u8]>| {
        let text = std::str::from_utf8(bytes).ok();
        text.and_then(OptimizerIdentity::of_text).ok_or_else(unreadable)
    };
    for (other, bytes) in all.iter().enumerate() {
        let others = read(bytes)?;
        if others != *optimizer {
            let (optimizer, others) = (optimizer.to_string(), others.to_string());
            return Err(ExecError::OptimizersDiffer { rank, optimizer, other: RankId::at(other), others });
        }
    }
    Ok(())
}
