//! The optimizer on a rank's slices. A vote that skips leaves everything as it is. The numbers are
//! those of [`super::adam`].

use std::sync::atomic::{AtomicBool, Ordering};

use half::bf16;

use super::adam::{AdamStep, Moment};
use super::memory::{Arena, BorrowError};
use super::op_error::OpError;
use crate::local::{Adam, Master, State};
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::Vote;
use warpweft_plan::policy::Moments;

/// Adam over the weights of one bucket and parameter group. `diverged` gets masters and moments from which no
/// training goes on.
pub(super) fn adam(op: &Adam, arena: &Arena, diverged: &AtomicBool) -> Result<(), OpError> {
    let vote = arena.read::<Vote>(op.vote)?.first().copied().unwrap_or_default();
    if vote.skips() {
        return Ok(());
    }
    for state in &op.states {
        let by = arena.read::<Hyperparameters>(state.hyperparameters)?.first().copied().unwrap_or_default();
        let step = AdamStep::new(&op.settings, op.largest, vote.step, vote.factor(), by);
        let goes_on = match op.moments {
            Moments::F32 => update::<f32>(state, arena, &step)?,
            Moments::Bf16 => update::<bf16>(state, arena, &step)?,
        };
        if !goes_on {
            diverged.store(true, Ordering::SeqCst);
        }
    }
    Ok(())
}

fn update<M: Moment>(state: &State, arena: &Arena, step: &AdamStep) -> Result<bool, BorrowError> {
    let mut exp_avg = arena.write::<M>(state.exp_avg)?;
    let mut exp_avg_sq = arena.write::<M>(state.exp_avg_sq)?;
    let gradient = arena.read::<f32>(state.main_grad)?;
    match state.master {
        Master::Whole(master) => {
            let mut master = arena.write::<f32>(master)?;
            Ok(step.update(master.iter_mut(), &mut exp_avg, &mut exp_avg_sq, &gradient))
        }
        Master::Split { shard, remainder } => {
            let mut shard = arena.write::<u16>(shard)?;
            let mut remainder = arena.write::<i16>(remainder)?;
            let halves = shard.iter_mut().zip(remainder.iter_mut());
            Ok(step.update(halves, &mut exp_avg, &mut exp_avg_sq, &gradient))
        }
    }
}
