//! `y = x + down(gelu(up(norm(x))))`.
//!
//! Law: forward keeps the hidden features before GELU and nothing else; backward computes the norm and
//! the activations again.

use crate::model::{Config, Scratch};
use crate::ops::{gelu, gelu_backward, normalize, normalize_backward};
use crate::product::{View, ViewMut};

/// The weights of the call, or their gradients: full and in the same shapes.
///
/// Backward takes the matrices transposed, but writes gradients that are not. A frozen weight has none.
#[derive(Clone, Copy)]
pub(crate) struct Weights<T> {
    /// `[width]`.
    pub(crate) gain: T,
    /// `[hidden, width]`.
    pub(crate) up: T,
    /// `[width, hidden]`.
    pub(crate) down: T,
}

/// Reads `x`, writes `hidden` (`[tokens, hidden]`, kept) and `y`; both streams are `[tokens, width]`.
pub(crate) fn forward(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    hidden: &mut [f32],
    y: &mut [f32],
    scratch: &mut Scratch,
) {
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    normalize(x, weights.gain, &mut scratch.normalized);
    ViewMut::dense(hidden, tokens, features).write(
        1.0,
        View::dense(&scratch.normalized, tokens, width),
        View::dense(weights.up, features, width).transposed(),
    );
    gelu(hidden, &mut scratch.activated);
    y.copy_from_slice(x);
    ViewMut::dense(y, tokens, width).add(
        View::dense(&scratch.activated, tokens, features),
        View::dense(weights.down, width, features).transposed(),
    );
}

/// `residual` holds the gradient of `y` and becomes the gradient of `x`; `weights` are transposed.
pub(crate) fn backward(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    hidden: &[f32],
    gradients: Weights<Option<&mut [f32]>>,
    residual: &mut [f32],
    scratch: &mut Scratch,
) {
    let (tokens, width, features) = (config.tokens(), config.width, config.hidden);
    let dy = View::dense(residual, tokens, width);
    ViewMut::dense(&mut scratch.hidden_gradient, tokens, features).write(
        1.0,
        dy,
        View::dense(weights.down, features, width).transposed(),
    );
    gelu_backward(hidden, &mut scratch.activated, &mut scratch.hidden_gradient);
    if let Some(gradient) = gradients.down {
        let activated = View::dense(&scratch.activated, tokens, features);
        ViewMut::dense(gradient, width, features).write(1.0, dy.transposed(), activated);
    }

    let hidden_gradient = View::dense(&scratch.hidden_gradient, tokens, features);
    if let Some(gradient) = gradients.up {
        normalize(x, weights.gain, &mut scratch.normalized);
        let normalized = View::dense(&scratch.normalized, tokens, width);
        ViewMut::dense(gradient, features, width).write(1.0, hidden_gradient.transposed(), normalized);
    }
    let up = View::dense(weights.up, width, features).transposed();
    ViewMut::dense(&mut scratch.gradient, tokens, width).write(1.0, hidden_gradient, up);
    normalize_backward(x, weights.gain, &mut scratch.gradient, residual, gradients.gain);
}
