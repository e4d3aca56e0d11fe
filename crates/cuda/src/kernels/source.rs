//! The kernel sources, as they are compiled: one translation unit per op family.

use super::super::compile::Source;

/// Kernels that are compiled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Partial amax.
    Amax,
    /// Fused scale.
    Scale,
    /// Delayed scaling.
    Delayed,
    /// Partial cast.
    Cast,
    /// Planes into values.
    Dequantize,
    /// Columnwise planes from rowwise ones.
    Transpose,
    /// Expanding and swizzling of scale planes.
    ScalePlane,
    /// Accumulation, and sums and maxima over ranks.
    Sum,
    /// Norm record and vote.
    Norm,
    /// Adam and AdamW.
    Adam,
    /// Looking for values that are too large or no numbers.
    Look,
    /// Copies and zeroes.
    Memory,
    /// Bytes to peers, with meetings.
    Exchange,
    /// Activations into operands of products.
    Activation,
    /// Activations into operands of products whose hardware scales blocks.
    BlockScaled,
    /// bf16 values one by one, and their sums.
    Elementwise,
    /// What surrounds the products that orthogonalize a matrix.
    Orthogonalize,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Amax,
        Self::Scale,
        Self::Delayed,
        Self::Cast,
        Self::Dequantize,
        Self::Transpose,
        Self::ScalePlane,
        Self::Sum,
        Self::Norm,
        Self::Adam,
        Self::Look,
        Self::Memory,
        Self::Exchange,
        Self::Activation,
        Self::BlockScaled,
        Self::Elementwise,
        Self::Orthogonalize,
    ];

    pub(super) const fn source(self) -> Source {
        let (name, text) = match self {
            Self::Amax => (c"amax.cu", include_str!("../../../../kernels/amax.cu")),
            Self::Scale => (c"scale.cu", include_str!("../../../../kernels/scale.cu")),
            Self::Delayed => (c"delayed.cu", include_str!("../../../../kernels/delayed.cu")),
            Self::Cast => (c"cast.cu", include_str!("../../../../kernels/cast.cu")),
            Self::Dequantize => (c"dequantize.cu", include_str!("../../../../kernels/dequantize.cu")),
            Self::Transpose => (c"transpose.cu", include_str!("../../../../kernels/transpose.cu")),
            Self::ScalePlane => (c"scale_plane.cu", include_str!("../../../../kernels/scale_plane.cu")),
            Self::Sum => (c"sum.cu", include_str!("../../../../kernels/sum.cu")),
            Self::Norm => (c"norm.cu", include_str!("../../../../kernels/norm.cu")),
            Self::Adam => (c"adam.cu", include_str!("../../../../kernels/adam.cu")),
            Self::Look => (c"look.cu", include_str!("../../../../kernels/look.cu")),
            Self::Activation => (c"activation.cu", include_str!("../../../../kernels/activation.cu")),
            Self::BlockScaled => (c"block_scaled.cu", include_str!("../../../../kernels/block_scaled.cu")),
            Self::Elementwise => (c"elementwise.cu", include_str!("../../../../kernels/elementwise.cu")),
            Self::Orthogonalize => {
                (c"orthogonalize.cu", include_str!("../../../../kernels/orthogonalize.cu"))
            }
            Self::Exchange => (c"exchange.cu", include_str!("../../../../kernels/exchange.cu")),
            Self::Memory => (c"memory.cu", include_str!("../../../../kernels/memory.cu")),
        };
        Source {
            name,
            text,
            headers: &[
                (c"activation.cuh", include_str!("../../../../kernels/activation.cuh")),
                (c"block_sum.cuh", include_str!("../../../../kernels/block_sum.cuh")),
                (c"common.cuh", include_str!("../../../../kernels/common.cuh")),
                (c"crossing.cuh", include_str!("../../../../kernels/crossing.cuh")),
                (c"elements.cuh", include_str!("../../../../kernels/elements.cuh")),
                (c"fragment.cuh", include_str!("../../../../kernels/fragment.cuh")),
                (c"gelu.cuh", include_str!("../../../../kernels/gelu.cuh")),
                (c"range.cuh", include_str!("../../../../kernels/range.cuh")),
                (c"slice.cuh", include_str!("../../../../kernels/slice.cuh")),
            ],
        }
    }
}

/// The number that a family's source, or a header of it, gives a constant.
#[cfg(test)]
pub(super) fn constant(family: Family, name: &str) -> Option<u64> {
    let source = family.source();
    let texts = source.headers.iter().map(|(_, text)| *text).chain([source.text]);
    let begin = format!("constexpr u32 {name} = ");
    let mut lines = texts.flat_map(str::lines);
    lines.find_map(|line| line.strip_prefix(begin.as_str())?.strip_suffix(';')?.parse().ok())
}
