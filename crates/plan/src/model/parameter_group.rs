//! Parameter groups: a factor on the learning rate and a weight decay for some weights.
//!
//! Law: what is not set is as the configuration says, so a weight without settings of its own is treated as
//! before there were groups. It holds for what a session sets for all weights from step to step, and not for what it
//! sets for weights of their own. Weights of one bucket and one group are one launch of the optimizer, or one for each
//! round of whole matrices.

use serde::{Serialize, Serializer};

/// A finite, non-negative f32 that can be compared and hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NonNegative {
    /// Bits of non-negative numbers are ordered as the numbers are.
    bits: u32,
}

impl NonNegative {
    /// `None` if the number is negative, infinite or NaN.
    #[must_use]
    pub const fn new(value: f32) -> Option<Self> {
        // Adding 0 turns negative zero into positive zero.
        if value >= 0.0 && value.is_finite() { Some(Self { bits: (value + 0.0).to_bits() }) } else { None }
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f32 {
        f32::from_bits(self.bits)
    }
}

impl Serialize for NonNegative {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f32(self.value())
    }
}

/// What the optimizer does differently for a weight; PyTorch's `param_groups`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ParameterGroup {
    /// Weight decay λ in place of the configuration's; mostly 0, for norms and biases.
    pub weight_decay: Option<NonNegative>,
    /// A factor on the learning rate of every step; 1 where not set. With 0 the masters stay what they are,
    /// but moments, norm and clipping still see the gradient. A weight that is to have no gradient is
    /// [frozen](crate::model::WeightSpec::frozen) instead.
    pub learning_rate_scale: Option<NonNegative>,
    /// Whether a custom optimizer takes the matrix whole: then it
    /// [prepares](crate::compute::Optimizer::prepare) rows and [transforms](crate::compute::Optimizer::transform) the
    /// matrix, before it updates rows by what came of it. For Adam there is no such thing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub whole_matrix: bool,
}

impl ParameterGroup {
    /// Whether everything is as the configuration says.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_finite_numbers_from_zero_on_are_taken_and_both_zeros_are_one() {
        for value in [0.0, f32::MIN_POSITIVE / 2.0, 1.5, f32::MAX] {
            assert_eq!(NonNegative::new(value).unwrap().value().to_bits(), value.to_bits());
        }
        assert_eq!(NonNegative::new(-0.0), NonNegative::new(0.0));
        for value in [-f32::MIN_POSITIVE, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(NonNegative::new(value), None, "{value}");
        }
    }

    #[test]
    fn they_are_ordered_as_numbers_are() {
        let mut values = [1e-40, 3.0, 0.0, 1e30, 0.5].map(|value| NonNegative::new(value).unwrap());
        values.sort_unstable();
        assert_eq!(values.map(NonNegative::value), [0.0, 1e-40, 0.5, 3.0, 1e30]);
    }
}
