//! Token embedding on the GPU; see [`crate::embedding`].

use super::device::Device;
use super::failure::Failure;
use super::kernel::Kernel;
use super::span::{Span, SpanMut};
use crate::model::VOCABULARY;

/// Writes `x`, `[count, width]`, from `table`, `[VOCABULARY, width]`.
pub(crate) fn forward(
    device: &Device,
    (count, width): (usize, usize),
    tokens: Span<'_, u8>,
    table: Span<'_, f32>,
    x: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device
        .elements(Kernel::Embed, count * width)
        .reads(tokens, count)
        .reads(table, VOCABULARY * width)
        .writes(x, count * width)
        .size(count)
        .size(width)
        .run()
}

/// Overwrites the gradient of the table from `residual`, in token order.
pub(crate) fn backward(
    device: &Device,
    (count, width): (usize, usize),
    tokens: Span<'_, u8>,
    residual: Span<'_, f32>,
    table: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device
        .rows(Kernel::EmbedBackward, VOCABULARY)
        .reads(tokens, count)
        .reads(residual, count * width)
        .writes(table, VOCABULARY * width)
        .size(count)
        .size(width)
        .run()
}
