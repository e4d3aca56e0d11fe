//! Costs of a call.
//!
//! Law: a cost is a list of parts that add up, each of them counted in operations, bytes and kernels, and
//! none of them in time: what these take is a cluster's to say ([`crate::cluster::Cluster::call_ns`]). No
//! number that a step computes depends on it.

use serde::{Deserialize, Serialize};

use warpweft_format::{Directions, Format, Orientation, Shape};

/// In what numbers the matrix products of a call are computed: which of a device's speeds applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Math {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16 operands, sums in f32.
    Bf16,
    /// 8-bit operands with scales.
    Fp8,
    /// 4-bit operands with scales.
    Fp4,
}

/// A part of what a call costs: some of its kernels, one after the other; a hint, never a promise.
///
/// It takes
///
/// `max(flops / speed of products in math, bytes / speed of memory) + kernels · time of a kernel`
///
/// on one rank, and a call takes the sum of its parts ([`super::CallBuilder::cost`]). Products hide what they
/// read behind their operations, so both belong in one part. What they write is there when their operations
/// are done, and hides behind nothing of its own call; nor does what only moves bytes: a normalization, an
/// activation function, quantizing what is multiplied. Each is a part by itself ([`CostHint::pass`]), as are
/// products in other numbers.
///
/// The simulator (virtual time) and the forecast of a plan read all of it, and
/// `prefetch.policy = "auto"` plans by it: ranks must give the same hints, or their plans differ (PL-1). A
/// call without a hint takes no time but its launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct CostHint {
    /// Floating-point operations on this rank; a multiplication and an addition are two.
    pub flops: u64,
    /// Bytes read from and written to device memory by this rank.
    pub bytes: u64,
    /// What the operations are computed in.
    pub math: Math,
    /// Kernels on this rank; 0 leaves out what they take beside operations and bytes.
    pub kernels: u32,
}

impl CostHint {
    /// One product of `[rows, inner]` by `[inner, cols]`: `2 · rows · inner · cols` operations in `math`. Its
    /// bytes are left out; add them where one of the three numbers is so small that memory decides.
    #[must_use]
    pub const fn product(rows: usize, inner: usize, cols: usize, math: Math) -> Self {
        let flops = (rows as u64).saturating_mul(inner as u64).saturating_mul(cols as u64).saturating_mul(2);
        Self { flops, bytes: 0, math, kernels: 1 }
    }

    /// One kernel that moves so many bytes, read and written, and computes nothing to speak of.
    #[must_use]
    pub const fn pass(bytes: u64) -> Self {
        Self { flops: 0, bytes, math: Math::F32, kernels: 1 }
    }

    /// One kernel that reads bf16 activations of `shape` once and writes the planes of `format` in these
    /// directions: what products in 8 or 4 bits do before they multiply.
    #[must_use]
    pub fn quantizing(format: Format, shape: Shape, directions: Directions) -> Self {
        let planes = |shape| -> usize {
            let bytes = format.planes(Orientation::Rowwise, shape).into_iter().map(|plane| plane.bytes());
            bytes.fold(0, usize::saturating_add)
        };
        let written = match directions {
            Directions::Rowwise => planes(shape),
            Directions::Columnwise => planes(shape.transposed()),
            Directions::Both => planes(shape).saturating_add(planes(shape.transposed())),
        };
        Self::pass(shape.elements().saturating_mul(2).saturating_add(written) as u64)
    }

    /// The same part so many times.
    #[must_use]
    pub const fn times(self, count: u32) -> Self {
        Self {
            flops: self.flops.saturating_mul(count as u64),
            bytes: self.bytes.saturating_mul(count as u64),
            kernels: self.kernels.saturating_mul(count),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_counts_two_operations_for_each_pair_of_factors() {
        let product = CostHint::product(3, 5, 7, Math::Bf16);
        assert_eq!(product, CostHint { flops: 210, bytes: 0, math: Math::Bf16, kernels: 1 });
        assert_eq!(product.times(2), CostHint { flops: 420, bytes: 0, math: Math::Bf16, kernels: 2 });
        assert_eq!(CostHint::pass(9).times(3), CostHint { bytes: 27, kernels: 3, ..CostHint::default() });
    }

    /// Of 256 × 384 values: 2 bytes read for each, a code written for each in each direction, and an f32
    /// scale for every 128 of them.
    #[test]
    fn quantizing_reads_values_once_and_writes_codes_and_scales_in_each_direction() {
        let format = Format::FP8_BLOCK1X128_POW2;
        let shape = Shape::new(256, 384);
        let bytes = |directions| CostHint::quantizing(format, shape, directions).bytes;
        let (values, codes, scales) = (2 * 256 * 384, 256 * 384, 4 * 256 * 384 / 128);
        assert_eq!(bytes(Directions::Rowwise), values + codes + scales);
        assert_eq!(bytes(Directions::Columnwise), values + codes + scales);
        assert_eq!(bytes(Directions::Both), values + 2 * (codes + scales));
        let vast = Shape::new(1 << 40, 1 << 40);
        assert_eq!(CostHint::quantizing(format, vast, Directions::Both).bytes, u64::MAX);
    }
}
