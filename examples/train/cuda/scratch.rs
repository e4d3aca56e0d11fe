//! Scratch memory of calls on the GPU, allocated once per rank before the first step.
//!
//! Law: as the CPU's [`crate::model::Scratch`], no call reads what another left here.

use super::device::{Buffer, Device};
use super::failure::Failure;
use crate::model::{Config, VOCABULARY};

/// Scratch for every call of a model.
pub(crate) struct Scratch {
    /// `[tokens, width]`: the normalized input of the call.
    pub(crate) normalized: Buffer<f32>,
    /// `[tokens, width]`: a gradient of that shape.
    pub(crate) gradient: Buffer<f32>,
    /// `[tokens]`: each row's 1 / rms, between the two halves of the norm's backward.
    pub(crate) inverses: Buffer<f32>,
    /// `[tokens, hidden]`: the MLP's activations.
    pub(crate) activated: Buffer<f32>,
    /// `[tokens, hidden]`: their gradient.
    pub(crate) hidden_gradient: Buffer<f32>,
    /// `[tokens, 3 · width]`: the gradient of queries, keys and values.
    pub(crate) qkv_gradient: Buffer<f32>,
    /// `[batch, heads, sequence, sequence]`: probabilities; only what the causal mask lets through is written.
    pub(crate) probabilities: Buffer<f32>,
    /// `[batch, heads, sequence, sequence]`: the gradient of the scores, likewise.
    pub(crate) score_gradient: Buffer<f32>,
    /// `[tokens, VOCABULARY]`: logits, then their gradient.
    pub(crate) logits: Buffer<f32>,
    /// `[tokens]`: each token's loss.
    pub(crate) losses: Buffer<f32>,
    /// `[sequence, head_width / 2, 2]`: cosine and sine of the rotary angles, constant.
    pub(crate) rotations: Buffer<f32>,
}

impl Scratch {
    /// Scratch for a model of these sizes.
    pub(crate) fn new(device: &Device, config: &Config) -> Result<Self, Failure> {
        let (tokens, sequence) = (config.tokens(), config.sequence);
        let zeros = |len: usize| device.zeros::<f32>(len);
        let pairs = config.batch * config.heads * sequence * sequence;
        let rotations = crate::attention::rotations(sequence, config.head_width());
        let rotations: Vec<f32> = rotations.into_iter().flat_map(|(cosine, sine)| [cosine, sine]).collect();
        Ok(Self {
            normalized: zeros(tokens * config.width)?,
            gradient: zeros(tokens * config.width)?,
            inverses: zeros(tokens)?,
            activated: zeros(tokens * config.hidden)?,
            hidden_gradient: zeros(tokens * config.hidden)?,
            qkv_gradient: zeros(tokens * 3 * config.width)?,
            probabilities: zeros(pairs)?,
            score_gradient: zeros(pairs)?,
            logits: zeros(tokens * VOCABULARY)?,
            losses: zeros(tokens)?,
            rotations: device.upload(&rotations)?,
        })
    }
}
