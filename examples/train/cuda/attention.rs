//! `y = x + output(attention(qkv(norm(x))))` on the GPU; see [`crate::attention`].
//!
//! Law: what is kept and what is recomputed is as on the CPU. Backward keeps the probabilities of all heads in
//! scratch between the kernel that goes along the queries and the one that goes along the keys.

use super::device::Device;
use super::failure::Failure;
use super::kernel::Kernel;
use super::ops::{NormalizeBackward, normalize, normalize_backward};
use super::scratch::Scratch;
use super::span::{Matrix, Span, SpanMut};
use crate::attention::{Kept, Weights};
use crate::model::Config;

/// Reads `x`, writes `y` and `keep`; both streams are `[tokens, width]`.
pub(crate) fn forward(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    mut keep: Kept<SpanMut<'_, f32>>,
    mut y: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width) = (config.tokens(), config.width);
    normalize(device, (tokens, width), x, weights.gain, scratch.normalized.write())?;
    device.multiply(
        keep.rotated.again(),
        false,
        Matrix::dense(scratch.normalized.read(), tokens, width),
        Matrix::dense(weights.qkv, 3 * width, width).transposed(),
    )?;
    rotate(device, config, scratch.rotations.read(), keep.rotated.again(), 1.0)?;
    device
        .rows(Kernel::AttentionForward, tokens * config.heads)
        .shared(config.sequence)
        .reads(keep.rotated.as_span(), tokens * 3 * width)
        .writes(keep.logsumexp, tokens * config.heads)
        .writes(keep.mixed.again(), tokens * width)
        .size(config.sequence)
        .size(config.heads)
        .size(config.head_width())
        .run()?;
    device.copy(x, y.again())?;
    device.multiply(
        y,
        true,
        Matrix::dense(keep.mixed.as_span(), tokens, width),
        Matrix::dense(weights.output, width, width).transposed(),
    )
}

/// `residual` holds the gradient of `y` and becomes the gradient of `x`; `weights` are transposed.
#[allow(clippy::too_many_arguments, reason = "those of the CPU, and the device")]
pub(crate) fn backward(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    kept: Kept<Span<'_, f32>>,
    gradients: Weights<Option<SpanMut<'_, f32>>>,
    residual: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width) = (config.tokens(), config.width);
    let dy = Matrix::dense(residual.as_span(), tokens, width);
    if let Some(gradient) = gradients.output {
        let mixed = Matrix::dense(kept.mixed, tokens, width);
        device.multiply(gradient, false, dy.transposed(), mixed)?;
    }
    let output = Matrix::dense(weights.output, width, width).transposed();
    device.multiply(scratch.gradient.write(), false, dy, output)?;

    scores_backward(device, config, kept, scratch)?;
    rotate(device, config, scratch.rotations.read(), scratch.qkv_gradient.write(), -1.0)?;

    let qkv_gradient = Matrix::dense(scratch.qkv_gradient.read(), tokens, 3 * width);
    if let Some(gradient) = gradients.qkv {
        normalize(device, (tokens, width), x, weights.gain, scratch.normalized.write())?;
        let normalized = Matrix::dense(scratch.normalized.read(), tokens, width);
        device.multiply(gradient, false, qkv_gradient.transposed(), normalized)?;
    }
    let qkv = Matrix::dense(weights.qkv, width, 3 * width).transposed();
    device.multiply(scratch.gradient.write(), false, qkv_gradient, qkv)?;
    let operands = NormalizeBackward {
        x,
        gain: weights.gain,
        gradient: scratch.gradient.read(),
        x_gradient: residual,
        adds: true,
        gain_gradient: gradients.gain,
        inverses: &mut scratch.inverses,
    };
    normalize_backward(device, (tokens, width), operands)
}

/// From the gradient of the mixed values, in `scratch.gradient`, to that of rotated queries, keys and values.
fn scores_backward(
    device: &Device,
    config: &Config,
    kept: Kept<Span<'_, f32>>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width, sequence) = (config.tokens(), config.width, config.sequence);
    let places = tokens * config.heads;
    device
        .rows(Kernel::AttentionBackwardQueries, places)
        .shared(2 * sequence)
        .reads(kept.rotated, tokens * 3 * width)
        .reads(kept.logsumexp, places)
        .reads(scratch.gradient.read(), tokens * width)
        .writes(scratch.probabilities.write(), places * sequence)
        .writes(scratch.score_gradient.write(), places * sequence)
        .writes(scratch.qkv_gradient.write(), tokens * 3 * width)
        .size(sequence)
        .size(config.heads)
        .size(config.head_width())
        .run()?;
    device
        .rows(Kernel::AttentionBackwardKeys, places)
        .reads(kept.rotated, tokens * 3 * width)
        .reads(scratch.gradient.read(), tokens * width)
        .reads(scratch.probabilities.read(), places * sequence)
        .reads(scratch.score_gradient.read(), places * sequence)
        .writes(scratch.qkv_gradient.write(), tokens * 3 * width)
        .size(sequence)
        .size(config.heads)
        .size(config.head_width())
        .run()
}

/// Rotates queries and keys in place; `sense` -1 turns back, which is also the backward.
fn rotate(
    device: &Device,
    config: &Config,
    rotations: Span<'_, f32>,
    qkv: SpanMut<'_, f32>,
    sense: f32,
) -> Result<(), Failure> {
    let (tokens, width, pairs) = (config.tokens(), config.width, config.head_width() / 2);
    device
        .elements(Kernel::Rotate, tokens * width)
        .reads(rotations, config.sequence * pairs * 2)
        .writes(qkv, tokens * 3 * width)
        .size(tokens)
        .size(config.sequence)
        .size(width)
        .size(pairs)
        .float(sense)
        .run()
}
