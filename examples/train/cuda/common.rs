//! Launches of `common.cu` whose operands the calls share: GELU and the losses of a head.

use super::device::{Buffer, Device};
use super::failure::Failure;
use super::kernel::Kernel;
use super::span::{Span, SpanMut};
use crate::model::VOCABULARY;

/// `out = gelu(hidden)`, `count` elements.
pub(crate) fn gelu(
    device: &Device,
    count: usize,
    hidden: Span<'_, f32>,
    out: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device.elements(Kernel::Gelu, count).reads(hidden, count).writes(out, count).size(count).run()
}

/// `gradient *= gelu'(hidden)`, and `activated = gelu(hidden)` again.
pub(crate) fn gelu_backward(
    device: &Device,
    count: usize,
    hidden: Span<'_, f32>,
    activated: SpanMut<'_, f32>,
    gradient: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device
        .elements(Kernel::GeluBackward, count)
        .reads(hidden, count)
        .writes(activated, count)
        .writes(gradient, count)
        .size(count)
        .run()
}

/// `loss[0]` = the mean loss of predicting `targets` by `logits`, `[tokens, VOCABULARY]`, which become its gradient;
/// each token's own into `losses`.
pub(crate) fn cross_entropy(
    device: &Device,
    tokens: usize,
    targets: Span<'_, u8>,
    logits: &mut Buffer<f32>,
    losses: &mut Buffer<f32>,
    loss: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device
        .rows(Kernel::CrossEntropy, tokens)
        .reads(targets, tokens)
        .writes(logits.write(), tokens * VOCABULARY)
        .writes(losses.write(), tokens)
        .size(VOCABULARY)
        .float(1.0 / tokens as f32)
        .run()?;
    device.rows(Kernel::MeanOf, 1).reads(losses.read(), tokens).writes(loss, 1).size(tokens).run()
}
