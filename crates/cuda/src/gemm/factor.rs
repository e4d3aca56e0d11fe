//! The factors of a product: elements, scales, shapes, and the bytes it touches.
//!
//! Law: sizes are those that cuBLASLt reads and writes, so that what is shorter is refused (GE-2).

use std::fmt;

use cudarc::cublaslt::sys;

/// Element type of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    Bf16,
    E4m3,
    E5m2,
    /// Two to a byte; lines are of whole bytes.
    E2m1,
}

impl Element {
    /// Bytes of so many elements.
    const fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements * 4,
            Self::Bf16 => elements * 2,
            Self::E4m3 | Self::E5m2 => elements,
            Self::E2m1 => elements.div_ceil(2),
        }
    }

    pub(super) const fn cuda(self) -> sys::cudaDataType {
        match self {
            Self::F32 => sys::cudaDataType_t::CUDA_R_32F,
            Self::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Self::E4m3 => sys::cudaDataType_t::CUDA_R_8F_E4M3,
            Self::E5m2 => sys::cudaDataType_t::CUDA_R_8F_E5M2,
            Self::E2m1 => sys::cudaDataType_t::CUDA_R_4F_E2M1,
        }
    }
}

/// How a factor is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Not at all.
    None,
    /// One f32 for the whole factor.
    Whole,
    /// f32 for each 128 elements along the contraction: `[blocks, outer]`, outer a multiple of 4.
    Lines128,
    /// f32 for each 128×128 elements: `[outer blocks, blocks rounded up to 4]`.
    Tiles128,
    /// E8M0 for each 32 elements along the contraction, in the layout of
    /// [`swizzle_scale`](warpweft_format::swizzle_scale).
    Lines32,
    /// E4M3 for each 16 elements along the contraction, in the same layout, relative to the factor's amax. Both
    /// factors have such scales, or none.
    Lines16,
}

impl Scale {
    /// Bytes of the scales of `outer` lines of `inner` elements.
    pub(super) fn bytes(self, outer: usize, inner: usize) -> usize {
        let blocks = inner.div_ceil(128);
        match self {
            Self::None => 0,
            Self::Whole => size_of::<f32>(),
            Self::Lines128 => blocks * outer * size_of::<f32>(),
            Self::Tiles128 => outer.div_ceil(128) * blocks.next_multiple_of(4) * size_of::<f32>(),
            Self::Lines32 => outer.next_multiple_of(128) * inner.div_ceil(32).next_multiple_of(4),
            Self::Lines16 => outer.next_multiple_of(128) * inner.div_ceil(16).next_multiple_of(4),
        }
    }
}

/// One factor: `outer` lines of the product's inner length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Factor {
    pub(crate) element: Element,
    /// Whether the contraction runs along neighbours in memory.
    pub(crate) contiguous: bool,
    /// Elements from one line of neighbours to the next.
    pub(crate) pitch: usize,
    pub(crate) scale: Scale,
}

/// A product of A's `rows` lines and B's `cols` lines, both of `inner` elements; D is stored as
/// `[cols, rows]` row-major, with lines `pitch` elements apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductSpec {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) inner: usize,
    pub(crate) a: Factor,
    pub(crate) b: Factor,
    pub(crate) d: Element,
    pub(crate) pitch: usize,
}

impl fmt::Display for ProductSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, cols, inner, a, b, d, pitch: _ } = self;
        let factor = |factor: &Factor| match factor.scale {
            Scale::None => format!("{:?}", factor.element),
            scale => format!("{:?} scaled by {scale:?}", factor.element),
        };
        write!(formatter, "{rows}×{inner} by {inner}×{cols}, {} by {} into {d:?}", factor(a), factor(b))
    }
}

impl ProductSpec {
    pub(super) fn factor_bytes(&self, factor: &Factor, outer: usize) -> usize {
        let lines = if factor.contiguous { outer } else { self.inner };
        let length = if factor.contiguous { self.inner } else { outer };
        let elements = lines.saturating_sub(1).saturating_mul(factor.pitch).saturating_add(length);
        factor.element.bytes(elements)
    }

    pub(super) fn result_bytes(&self) -> usize {
        self.d.bytes(self.cols.saturating_sub(1).saturating_mul(self.pitch).saturating_add(self.rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planes of the formats, and cuBLASLt's sizes: lines rounded up to 128, blocks to 4.
    #[test]
    fn scales_have_the_bytes_of_the_planes_that_hold_them() {
        use warpweft_format::{Format, Orientation, PlaneKind, PlaneSpec, Shape};
        let plane = |format: Format, orientation, shape| {
            let planes = format.planes(orientation, shape);
            planes.iter().find(|plane| plane.kind == PlaneKind::Scale).map_or(0, PlaneSpec::bytes)
        };
        for (rows, cols) in [(32, 32), (128, 128), (160, 288), (4096, 1056)] {
            let shape = Shape::new(rows, cols);
            let mxfp8 = |orientation| plane(Format::Mxfp8, orientation, shape);
            assert_eq!(Scale::Lines32.bytes(rows, cols), mxfp8(Orientation::Rowwise), "{shape}");
            assert_eq!(Scale::Lines32.bytes(cols, rows), mxfp8(Orientation::Columnwise), "{shape}");
            let nvfp4 = |orientation| plane(Format::NVFP4_2D, orientation, shape);
            assert_eq!(Scale::Lines16.bytes(rows, cols), nvfp4(Orientation::Rowwise), "{shape}");
            assert_eq!(Scale::Lines16.bytes(cols, rows), nvfp4(Orientation::Columnwise), "{shape}");
            let block = |format| plane(format, Orientation::Rowwise, shape);
            assert_eq!(Scale::Tiles128.bytes(rows, cols), block(Format::FP8_BLOCK128_POW2), "{shape}");
            assert_eq!(Scale::Lines128.bytes(rows, cols), block(Format::FP8_BLOCK1X128_POW2), "{shape}");
        }
        // One line of 96 elements: 128 lines of four blocks.
        assert_eq!((Scale::Lines32.bytes(1, 96), Scale::Lines16.bytes(1, 96)), (512, 1024));
        assert_eq!((Scale::None.bytes(9, 9), Scale::Whole.bytes(9, 9)), (0, 4));
    }

    #[test]
    fn two_elements_of_four_bits_take_a_byte() {
        let factor = |element, pitch| Factor { element, contiguous: true, pitch, scale: Scale::None };
        let (a, b) = (factor(Element::E2m1, 96), factor(Element::E4m3, 80));
        let spec = ProductSpec { rows: 5, cols: 3, inner: 64, a, b, d: Element::Bf16, pitch: 8 };
        assert_eq!(spec.factor_bytes(&a, spec.rows), (4 * 96 + 64) / 2);
        assert_eq!(spec.factor_bytes(&b, spec.cols), 2 * 80 + 64);
        assert_eq!(spec.result_bytes(), 2 * (2 * 8 + 5));
    }
}
