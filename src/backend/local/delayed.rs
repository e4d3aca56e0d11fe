//! Delayed scaling of one bucket: scales from the history, amaxes into it.
//!
//! Law: nothing here depends on the rank. History and factors are the same on all ranks, because the amaxes
//! recorded are maxima over them (DS-1).

use super::Refusal;
use super::binder::Binder;
use crate::format::Fp8Tensor;
use crate::id::{BucketId, SlotId};
use crate::layout::{Delayed, Region};

/// Factors of the coming cast and tensor scales, one per weight.
#[derive(Debug)]
pub(in crate::backend) struct DelayedScale {
    pub(in crate::backend) tensor: Fp8Tensor,
    pub(in crate::backend) settings: Delayed,
    /// f32 `[weights, history]`; without it the factors stay.
    pub(in crate::backend) history: Option<Region>,
    pub(in crate::backend) scale: Region,
    pub(in crate::backend) tensor_scale: Region,
    pub(in crate::backend) vote: Option<Region>,
}

/// Amaxes of the weights, to be put into the history.
#[derive(Debug)]
pub(in crate::backend) struct RecordAmax {
    pub(in crate::backend) settings: Delayed,
    pub(in crate::backend) tensor_amax: Region,
    pub(in crate::backend) history: Region,
    pub(in crate::backend) vote: Option<Region>,
}

/// The bucket's format, settings and number of weights.
fn members(binder: &Binder<'_>, bucket: BucketId) -> Result<(Fp8Tensor, Delayed, usize), Refusal> {
    let weights = binder.bucket(bucket)?.weights.len();
    match binder.binding.weights.delayed(bucket) {
        Some((tensor, settings)) if settings.history > 0 => Ok((tensor, settings, weights)),
        _ => Err(format!("the scales of {bucket} are not delayed")),
    }
}

impl DelayedScale {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        bucket: BucketId,
        history: Option<SlotId>,
        scale: SlotId,
        tensor_scale: SlotId,
        vote: Option<Region>,
    ) -> Result<Self, Refusal> {
        let (tensor, settings, weights) = members(binder, bucket)?;
        let amaxes = weights.saturating_mul(settings.history as usize);
        Ok(Self {
            tensor,
            settings,
            history: history.map(|slot| binder.elements::<f32>(slot, amaxes)).transpose()?,
            scale: binder.elements::<f32>(scale, weights)?,
            tensor_scale: binder.elements::<f32>(tensor_scale, weights)?,
            vote,
        })
    }
}

impl RecordAmax {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        bucket: BucketId,
        tensor_amax: SlotId,
        history: SlotId,
        vote: Option<Region>,
    ) -> Result<Self, Refusal> {
        let (_, settings, weights) = members(binder, bucket)?;
        let amaxes = weights.saturating_mul(settings.history as usize);
        Ok(Self {
            settings,
            tensor_amax: binder.elements::<f32>(tensor_amax, weights)?,
            history: binder.elements::<f32>(history, amaxes)?,
            vote,
        })
    }
}
