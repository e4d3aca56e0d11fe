//! Delayed scaling: factors from the history, amaxes into it.
//!
//! Law: the format crate defines the numbers. A vote that skips leaves factors and history as they are.

use super::memory::Arena;
use super::op_error::OpError;
use super::skip::skips;
use crate::local::{DelayedScale, RecordAmax};

/// Factors of the coming cast and their reciprocals.
pub(super) fn delayed_scale(op: &DelayedScale, arena: &Arena) -> Result<(), OpError> {
    if skips(arena, op.vote)? {
        return Ok(());
    }
    let mut tensor_scale = arena.write::<f32>(op.tensor_scale)?;
    let length = op.settings.history as usize;
    let scale = |amaxes: &[f32], in_use| {
        warpweft_format::delayed_scale_of_group(op.tensor, op.settings.choice, amaxes, length, in_use)
    };
    match op.history {
        Some(history) => {
            let history = arena.read::<f32>(history)?;
            let mut factors = arena.write::<f32>(op.scale)?;
            for ((factor, decode), group) in
                factors.iter_mut().zip(tensor_scale.iter_mut()).zip(&op.scaled_with)
            {
                let amaxes = history.get(group.start * length..group.end * length).unwrap_or_default();
                let next = scale(amaxes, *factor);
                (*factor, *decode) = (next.encode, next.decode);
            }
        }
        None => {
            let factors = arena.read::<f32>(op.scale)?;
            for (factor, decode) in factors.iter().zip(tensor_scale.iter_mut()) {
                *decode = scale(&[], *factor).decode;
            }
        }
    }
    Ok(())
}

/// The amaxes of masters just cast.
pub(super) fn record_amax(op: &RecordAmax, arena: &Arena) -> Result<(), OpError> {
    if skips(arena, op.vote)? {
        return Ok(());
    }
    let tensor_amax = arena.read::<f32>(op.tensor_amax)?;
    let mut history = arena.write::<f32>(op.history)?;
    for (amaxes, amax) in history.chunks_exact_mut(op.settings.history as usize).zip(tensor_amax.iter()) {
        warpweft_format::record_amax(amaxes, *amax);
    }
    Ok(())
}
