//! The tied head: `logits = norm(x) · tableᵀ`, mean cross-entropy over the rank's tokens, in nats.
//!
//! Law: forward and backward are one call, so logits live in scratch and are never kept. The table is
//! the embedding's, `[VOCABULARY, width]`, read rowwise.

use crate::model::{Config, Scratch, VOCABULARY};
use crate::ops::{normalize, normalize_backward, softmax};
use crate::product::{View, ViewMut};

/// The weights of the call, or their gradients in the same shapes; that of the table is the head's
/// contribution alone, and a frozen weight has none.
#[derive(Clone, Copy)]
pub(crate) struct Weights<T> {
    /// `[width]`.
    pub(crate) gain: T,
    /// `[VOCABULARY, width]`.
    pub(crate) table: T,
}

/// The mean loss of predicting `targets` from `x`, `[tokens, width]`; no gradient.
pub(crate) fn evaluate(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    targets: &[u8],
    scratch: &mut Scratch,
) -> f32 {
    let tokens = config.tokens();
    normalize(x, weights.gain, &mut scratch.normalized);
    ViewMut::dense(&mut scratch.logits, tokens, VOCABULARY).write(
        1.0,
        View::dense(&scratch.normalized, tokens, config.width),
        View::dense(weights.table, VOCABULARY, config.width).transposed(),
    );
    // Leaves the probabilities in place of the logits: that is what backward starts from.
    let mut sum = 0.0;
    for (row, &target) in scratch.logits.chunks_exact_mut(VOCABULARY).zip(targets) {
        let logit = row[usize::from(target)];
        sum += f64::from(softmax(row) - logit);
    }
    (sum / tokens as f64) as f32
}

/// As [`evaluate`], and writes `gradients` and the gradient of `x` into `residual`.
pub(crate) fn forward_backward(
    config: &Config,
    x: &[f32],
    weights: Weights<&[f32]>,
    targets: &[u8],
    gradients: Weights<Option<&mut [f32]>>,
    residual: &mut [f32],
    scratch: &mut Scratch,
) -> f32 {
    let (tokens, width) = (config.tokens(), config.width);
    let loss = evaluate(config, x, weights, targets, scratch);
    let share = 1.0 / tokens as f32;
    for (row, &target) in scratch.logits.chunks_exact_mut(VOCABULARY).zip(targets) {
        row[usize::from(target)] -= 1.0;
        row.iter_mut().for_each(|gradient| *gradient *= share);
    }
    let logit_gradient = View::dense(&scratch.logits, tokens, VOCABULARY);
    if let Some(gradient) = gradients.table {
        let normalized = View::dense(&scratch.normalized, tokens, width);
        ViewMut::dense(gradient, VOCABULARY, width).write(1.0, logit_gradient.transposed(), normalized);
    }
    let table = View::dense(weights.table, VOCABULARY, width);
    ViewMut::dense(&mut scratch.gradient, tokens, width).write(1.0, logit_gradient, table);
    residual.fill(0.0);
    normalize_backward(x, weights.gain, &mut scratch.gradient, residual, gradients.gain);
    loss
}
