//! `y = x + down(gelu(up(norm(x))))` on the GPU; see [`crate::mlp`].

use super::common::{gelu, gelu_backward};
use super::device::Device;
use super::failure::Failure;
use super::ops::{NormalizeBackward, normalize, normalize_backward};
use super::scratch::Scratch;
use super::span::{Matrix, Span, SpanMut};
use crate::mlp::Weights;
use crate::model::Config;

/// Reads `x`, writes `hidden` (`[tokens, hidden]`, kept) and `y`; both streams are `[tokens, width]`.
pub(crate) fn forward(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    mut hidden: SpanMut<'_, f32>,
    mut y: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    normalize(device, (tokens, width), x, weights.gain, scratch.normalized.write())?;
    device.multiply(
        hidden.again(),
        false,
        Matrix::dense(scratch.normalized.read(), tokens, width),
        Matrix::dense(weights.up, features, width).transposed(),
    )?;
    gelu(device, tokens * features, hidden.as_span(), scratch.activated.write())?;
    device.copy(x, y.again())?;
    device.multiply(
        y,
        true,
        Matrix::dense(scratch.activated.read(), tokens, features),
        Matrix::dense(weights.down, width, features).transposed(),
    )
}

/// `residual` holds the gradient of `y` and becomes the gradient of `x`; `weights` are transposed.
#[allow(clippy::too_many_arguments, reason = "those of the CPU, and the device")]
pub(crate) fn backward(
    device: &Device,
    config: &Config,
    x: Span<'_, f32>,
    weights: Weights<Span<'_, f32>>,
    hidden: Span<'_, f32>,
    gradients: Weights<Option<SpanMut<'_, f32>>>,
    residual: SpanMut<'_, f32>,
    scratch: &mut Scratch,
) -> Result<(), Failure> {
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    let dy = Matrix::dense(residual.as_span(), tokens, width);
    let down = Matrix::dense(weights.down, features, width).transposed();
    device.multiply(scratch.hidden_gradient.write(), false, dy, down)?;
    gelu_backward(
        device,
        tokens * features,
        hidden,
        scratch.activated.write(),
        scratch.hidden_gradient.write(),
    )?;
    if let Some(gradient) = gradients.down {
        let activated = Matrix::dense(scratch.activated.read(), tokens, features);
        device.multiply(gradient, false, dy.transposed(), activated)?;
    }

    let hidden_gradient = Matrix::dense(scratch.hidden_gradient.read(), tokens, features);
    if let Some(gradient) = gradients.up {
        normalize(device, (tokens, width), x, weights.gain, scratch.normalized.write())?;
        let normalized = Matrix::dense(scratch.normalized.read(), tokens, width);
        device.multiply(gradient, false, hidden_gradient.transposed(), normalized)?;
    }
    let up = Matrix::dense(weights.up, width, features).transposed();
    device.multiply(scratch.gradient.write(), false, hidden_gradient, up)?;
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
