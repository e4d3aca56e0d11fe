//! The tied head on the GPU; see [`crate::head`].
//!
//! Law: the loss goes from the kernel into its declared output; no host value depends on it.

use super::common::cross_entropy;
use super::device::Device;
use super::failure::Failure;
use super::ops::{NormalizeBackward, normalize, normalize_backward};
use super::scratch::Scratch;
use super::span::{Matrix, Span, SpanMut};
use crate::head::Weights;
use crate::model::{Config, VOCABULARY};

/// The mean loss of predicting `targets` from `x`, `[tokens, width]`; leaves the gradient of the logits in
/// scratch.
pub(crate) fn evaluate(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    targets: Span<'_, u8>,
    loss: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width) = (config.tokens(), config.width);
    normalize(device, (tokens, width), x, weights.gain, scratch.normalized.write())?;
    device.multiply(
        scratch.logits.write(),
        false,
        Matrix::dense(scratch.normalized.read(), tokens, width),
        Matrix::dense(weights.table, VOCABULARY, width).transposed(),
    )?;
    cross_entropy(device, tokens, targets, &mut scratch.logits, &mut scratch.losses, loss)
}

/// As [`evaluate`], and writes `gradients` and the gradient of `x` into `residual`.
#[allow(clippy::too_many_arguments, reason = "those of the CPU, the device and the loss")]
pub(crate) fn forward_backward(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    targets: Span<'_, u8>,
    gradients: Weights<Option<SpanMut<'_, f32>>>,
    loss: SpanMut<'_, f32>,
    residual: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width) = (config.tokens(), config.width);
    evaluate(device, config, x, weights, targets, loss, scratch)?;
    let logit_gradient = Matrix::dense(scratch.logits.read(), tokens, VOCABULARY);
    if let Some(gradient) = gradients.table {
        let normalized = Matrix::dense(scratch.normalized.read(), tokens, width);
        device.multiply(gradient, false, logit_gradient.transposed(), normalized)?;
    }
    let table = Matrix::dense(weights.table, VOCABULARY, width);
    device.multiply(scratch.gradient.write(), false, logit_gradient, table)?;
    let operands = NormalizeBackward {
        x,
        gain: weights.gain,
        gradient: scratch.gradient.read(),
        x_gradient: residual,
        adds: false,
        gain_gradient: gradients.gain,
        inverses: &mut scratch.inverses,
    };
    normalize_backward(device, (tokens, width), operands)
}
