//! The optimizer on a rank's slices. A vote that skips leaves everything as it is. The numbers are
//! those of [`super::adam`], and of the format crate where an update casts.

use std::sync::atomic::{AtomicBool, Ordering};

use half::bf16;

use super::adam::{AdamStep, Moment};
use super::memory::Arena;
use super::op_error::OpError;
use super::quantize;
use crate::local::{Adam, Cast, Master, State};
use warpweft_format::Orientation;
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::Vote;
use warpweft_plan::policy::Moments;

/// Adam over the weights of one bucket and parameter group. `diverged` gets masters and moments from which no
/// training goes on. `blocks` is scratch.
pub(super) fn adam(
    op: &Adam,
    arena: &Arena,
    blocks: &mut Vec<f32>,
    diverged: &AtomicBool,
) -> Result<(), OpError> {
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
        if let Master::Cast(master, to) = &state.master {
            cast(to, &arena.read::<f32>(*master)?, arena, blocks)?;
        }
    }
    op.amaxes.as_ref().map_or(Ok(()), |amaxes| quantize::partial_amax(amaxes, arena))
}

/// Amax, scale and cast of a new master.
fn cast(to: &Cast, master: &[f32], arena: &Arena, blocks: &mut Vec<f32>) -> Result<(), OpError> {
    const ROWWISE: Orientation = Orientation::Rowwise;
    let Cast { format, via, shape, planes, tensor_scale } = *to;
    let count = format.amax_blocks(ROWWISE, shape);
    if blocks.len() < 2 * count {
        blocks.resize(2 * count, 0.0);
    }
    let (amaxes, factors) = blocks[..2 * count].split_at_mut(count);
    if let Some(tensor_scale) = tensor_scale {
        let amax = warpweft_format::partial_amax(format, ROWWISE, via, shape, master, amaxes)?;
        let mut plane = arena.write::<u8>(planes.scale)?;
        let scale = warpweft_format::fused_scale(format, ROWWISE, shape, amaxes, amax, factors, &mut plane)?;
        arena.write::<f32>(tensor_scale)?.fill(scale);
    }
    let mut data = arena.write::<u8>(planes.data)?;
    Ok(warpweft_format::partial_cast(format, ROWWISE, via, shape, master, factors, &mut data)?)
}

fn update<M: Moment>(state: &State, arena: &Arena, step: &AdamStep) -> Result<bool, OpError> {
    let mut exp_avg = arena.write::<M>(state.exp_avg)?;
    let mut exp_avg_sq = arena.write::<M>(state.exp_avg_sq)?;
    let gradient = arena.read::<f32>(state.main_grad)?;
    match state.master {
        Master::Whole(master) | Master::Cast(master, _) => {
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
