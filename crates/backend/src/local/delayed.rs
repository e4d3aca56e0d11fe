//! Delayed scaling of one bucket: scales from the history, amaxes into it.
//!
//! Law: nothing here depends on the rank. History and factors are the same on all ranks, because the amaxes
//! recorded are maxima over them (DS-1).

use std::ops::Range;

use super::Refusal;
use super::binder::Binder;
use warpweft_base::id::{BucketId, SlotId};
use warpweft_format::Fp8Tensor;
use warpweft_plan::layout::{Delayed, Region};

/// Factors of the coming cast and tensor scales, one per weight.
#[derive(Debug)]
pub struct DelayedScale {
    pub tensor: Fp8Tensor,
    pub settings: Delayed,
    /// For each weight the positions of those whose histories its factor follows from, its own among them:
    /// [`Weights::scaled_with`](warpweft_plan::layout::Weights::scaled_with).
    pub scaled_with: Vec<Range<usize>>,
    /// f32 `[weights, history]`; without it the factors stay.
    pub history: Option<Region>,
    pub scale: Region,
    pub tensor_scale: Region,
    pub vote: Option<Region>,
}

/// Amaxes of the weights, to be put into the history.
#[derive(Debug)]
pub struct RecordAmax {
    pub settings: Delayed,
    pub tensor_amax: Region,
    pub history: Region,
    pub vote: Option<Region>,
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
    pub fn resolve(
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
            scaled_with: binder
                .bucket(bucket)?
                .weights
                .iter()
                .map(|weight| binder.binding.weights.scaled_with(*weight))
                .collect(),
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
