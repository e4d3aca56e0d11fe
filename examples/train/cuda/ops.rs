//! The root-mean-square norm as launches: that of `crate::ops` on the device.
//!
//! Law: this file and its neighbours alone know a kernel's operands; each names how many elements the kernel
//! touches.

use super::device::{Buffer, Device};
use super::failure::Failure;
use super::kernel::Kernel;
use super::span::{Span, SpanMut};

/// `out = gain · x / rms(x)` for each row of `x`, `[rows, width]`.
pub(crate) fn normalize(
    device: &Device,
    (rows, width): (usize, usize),
    x: Span<'_, f32>,
    gain: Span<'_, f32>,
    out: SpanMut<'_, f32>,
) -> Result<(), Failure> {
    device
        .rows(Kernel::Normalize, rows)
        .reads(x, rows * width)
        .reads(gain, width)
        .writes(out, rows * width)
        .size(width)
        .run()
}

/// The operands of [`normalize_backward`].
pub(crate) struct NormalizeBackward<'a> {
    /// `[rows, width]`: what was normalized.
    pub(crate) x: Span<'a, f32>,
    /// `[width]`.
    pub(crate) gain: Span<'a, f32>,
    /// `[rows, width]`: the gradient of the norm's output.
    pub(crate) gradient: Span<'a, f32>,
    /// `[rows, width]`: the gradient of `x`.
    pub(crate) x_gradient: SpanMut<'a, f32>,
    /// Whether `x_gradient` is added to, rather than overwritten.
    pub(crate) adds: bool,
    /// `[width]`: overwritten, unless the gain is frozen.
    pub(crate) gain_gradient: Option<SpanMut<'a, f32>>,
    /// `[rows]`: scratch.
    pub(crate) inverses: &'a mut Buffer<f32>,
}

/// Backward of [`normalize`].
pub(crate) fn normalize_backward(
    device: &Device,
    (rows, width): (usize, usize),
    operands: NormalizeBackward<'_>,
) -> Result<(), Failure> {
    let NormalizeBackward { x, gain, gradient, x_gradient, adds, gain_gradient, inverses } = operands;
    device
        .rows(Kernel::NormalizeBackward, rows)
        .reads(x, rows * width)
        .reads(gain, width)
        .reads(gradient, rows * width)
        .writes(x_gradient, rows * width)
        .writes(inverses.write(), rows)
        .size(width)
        .size(usize::from(adds))
        .run()?;
    let Some(gain_gradient) = gain_gradient else { return Ok(()) };
    // A block takes 32 features.
    device
        .rows(Kernel::GainBackward, width.div_ceil(32))
        .reads(x, rows * width)
        .reads(gradient, rows * width)
        .reads(inverses.read(), rows)
        .writes(gain_gradient, width)
        .size(rows)
        .size(width)
        .run()
}
