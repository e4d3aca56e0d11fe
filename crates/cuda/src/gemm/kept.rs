//! Activations kept for backward: of a quantized matrix, the codes of its transpose and
//! their scales, in one piece of memory.
//!
//! Law: places follow from format and shape alone. Both parts begin at multiples of 256 bytes, as products
//! want their factors; what is between them is never written or read.

use super::lent::Lent;
use super::product::{ALIGNMENT, Scaled};
use crate::failure::CudaFailure;
use crate::kernels::ActivationQuantizer;
use warpweft_format::{Format, Orientation, PlaneKind, PlaneSpec, Shape};

/// Codes `[cols, rows rounded up]` ([`Kept::pitch`]), then their scales: one scale if it holds for the whole
/// matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    code_bytes: usize,
    scale_bytes: usize,
}

impl Kept {
    /// The alignment of what is kept.
    pub(crate) const ALIGNMENT: usize = ALIGNMENT as usize;

    /// What is kept of a matrix of `shape`, quantized to `format`: FP8 in 1×128 blocks or with one scale, or
    /// MXFP8.
    pub(crate) fn of(format: Format, shape: Shape) -> Self {
        let turned = Shape::new(shape.cols, Self::pitch(format, shape.rows));
        Self { code_bytes: turned.elements(), scale_bytes: Self::scales_of(format, turned) }
    }

    /// Elements of a line of transposed codes of so many rows. Those after the last row are zero.
    pub(crate) const fn pitch(format: Format, rows: usize) -> usize {
        ActivationQuantizer::line(format, rows)
    }

    /// Bytes of the scales of codes of `shape`.
    pub(super) fn scales_of(format: Format, shape: Shape) -> usize {
        let planes = format.planes(Orientation::Rowwise, shape);
        let plane = planes.iter().find(|plane| plane.kind == PlaneKind::Scale);
        plane.map_or(size_of::<f32>(), PlaneSpec::bytes)
    }

    pub(super) const fn code_bytes(self) -> usize {
        self.code_bytes
    }

    pub(super) const fn scale_bytes(self) -> usize {
        self.scale_bytes
    }

    const fn scale_offset(self) -> usize {
        self.code_bytes.next_multiple_of(Self::ALIGNMENT)
    }

    /// All of it.
    pub(crate) const fn bytes(self) -> usize {
        self.scale_offset() + self.scale_bytes
    }

    /// Refuses memory of another size or with another alignment.
    pub(super) fn check(self, kept: Lent<'_>) -> Result<(), CudaFailure> {
        if kept.bytes() == self.bytes() && kept.address().number().is_multiple_of(ALIGNMENT) {
            return Ok(());
        }
        Err(CudaFailure::Refused(format!(
            "{} bytes at {} are not what is kept of a quantized matrix: {} bytes that begin at a multiple of {ALIGNMENT}",
            kept.bytes(),
            kept.address(),
            self.bytes()
        )))
    }

    /// The codes in memory that was checked.
    pub(super) const fn codes(self, kept: Lent<'_>) -> Lent<'_> {
        Lent::new(kept.address(), self.code_bytes)
    }

    /// Their scales.
    pub(super) const fn scale(self, kept: Lent<'_>) -> Lent<'_> {
        Lent::new(kept.address().plus(self.scale_offset()), self.scale_bytes)
    }

    /// Both.
    pub(super) const fn factor(self, kept: Lent<'_>) -> Scaled<'_> {
        Scaled { values: self.codes(kept), scale: Some(self.scale(kept)), amax: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_transpose_and_their_scales_lie_apart_and_aligned() {
        // 36 tokens are lines of 48 codes, one block of scales and 80 columns.
        let kept = Kept::of(Format::FP8_BLOCK1X128_POW2, Shape::new(36, 80));
        assert_eq!((kept.code_bytes, kept.scale_bytes), (80 * 48, 80 * 4));
        assert_eq!((kept.scale_offset(), kept.bytes()), (3840, 3840 + 320));
        let kept = Kept::of(Format::FP8_BLOCK1X128_POW2, Shape::new(300, 16));
        assert_eq!((kept.code_bytes, kept.scale_bytes), (16 * 304, 3 * 16 * 4));
        assert_eq!((kept.scale_offset(), kept.bytes()), (4864, 4864 + 192));
        let kept = Kept::of(Format::FP8_TENSOR_E4M3, Shape::new(17, 32));
        assert_eq!((kept.scale_offset(), kept.bytes()), (32 * 32, 32 * 32 + 4));
        // Blocks of 32 tokens are whole, and scales those of 128 lines by four blocks.
        let kept = Kept::of(Format::Mxfp8, Shape::new(37, 96));
        assert_eq!((kept.code_bytes, kept.scale_bytes), (96 * 64, 128 * 4));
        assert_eq!((kept.scale_offset(), kept.bytes()), (96 * 64, 96 * 64 + 512));
        let kept = Kept::of(Format::Mxfp8, Shape::new(129, 160));
        assert_eq!((kept.code_bytes, kept.scale_bytes), (160 * 160, 256 * 8));
    }
}
