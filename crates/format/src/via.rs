//! The dtype a master weight passes through before it is quantized.
//!
//! Training with masters in f32 and a model in bf16 stores the weight in bf16 first. A quantized weight must
//! equal "store in bf16, then quantize", so the rounding comes before the amax and before the cast. It
//! applies to every format except f32: a weight stored in f32 means that the model is in f32.

use super::Format;

/// Rounding applied to master values before amax and cast (`quantize.via`); not applied to weights in
/// [`Format::F32`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Round to bfloat16, nearest even.
    #[default]
    Bf16,
    /// Use the f32 as it is.
    None,
}

impl Via {
    /// `value` as a cast to `format` gets it: f32 is never rounded, and bf16 always is. What is
    /// rounded beyond the largest bf16 is infinite, and takes its block or its tensor with it.
    #[must_use]
    pub fn round(self, format: Format, value: f32) -> f32 {
        match (format, self) {
            (Format::F32, _) => value,
            (Format::Bf16, _) | (_, Self::Bf16) => round_to_bf16(value),
            (_, Self::None) => value,
        }
    }

    /// The largest magnitude of a master that [`Via::round`] leaves finite: any f32, or just below what bf16
    /// rounds to infinity.
    #[must_use]
    pub const fn largest(self, format: Format) -> f32 {
        match (format, self) {
            (Format::F32, _) => f32::MAX,
            (Format::Bf16, _) | (_, Self::Bf16) => LARGEST_BEFORE_BF16,
            (_, Self::None) => f32::MAX,
        }
    }
}

/// The largest f32 that rounds to a finite bfloat16, whichever way ties go: the next one lies halfway to the
/// power of two that is none.
const LARGEST_BEFORE_BF16: f32 = f32::from_bits(0x7F7F_7FFF);

/// `value` rounded to the nearest bfloat16, ties to even, as the upper half of an f32. NaN stays NaN.
#[inline(always)]
pub(super) fn round_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF).wrapping_add((bits >> 16) & 1);
    // A NaN must not carry into the exponent and come out as a number: make it quiet instead.
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    f32::from_bits(bits & 0xFFFF_0000)
}

/// What planes are dequantized to.
pub(super) trait Value {
    /// `value` in this element type, rounded to nearest even.
    fn of(value: f32) -> Self;
}

impl Value for f32 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }
}

impl Value for half::bf16 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        Self::from_bits((round_to_bf16(value).to_bits() >> 16) as u16)
    }
}

/// [`Via`] as a compile-time choice, so that it costs nothing inside a loop.
#[inline(always)]
pub(super) fn through<const BF16: bool>(value: f32) -> f32 {
    if BF16 { round_to_bf16(value) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cast_gets_f32_as_it_is_and_bf16_rounded_whatever_is_said() {
        let third = 1.0 / 3.0;
        let rounded = round_to_bf16(third);
        assert_ne!(rounded, third);
        for via in [Via::Bf16, Via::None] {
            assert_eq!(via.round(Format::F32, third), third);
            assert_eq!(via.round(Format::Bf16, third), rounded);
        }
        assert_eq!(Via::Bf16.round(Format::Mxfp8, third), rounded);
        assert_eq!(Via::None.round(Format::Mxfp8, third), third);
        assert_eq!(Via::Bf16.round(Format::Mxfp8, f32::MAX), f32::INFINITY);
    }

    #[test]
    fn the_largest_master_is_the_last_one_that_stays_finite() {
        for (via, format) in [Via::Bf16, Via::None]
            .into_iter()
            .flat_map(|via| [Format::F32, Format::Bf16, Format::Mxfp8].map(|f| (via, f)))
        {
            let largest = via.largest(format);
            assert!(via.round(format, largest).is_finite() && via.round(format, -largest).is_finite());
            assert!(!via.round(format, largest.next_up()).is_finite(), "{via:?}, {format}");
        }
        // Masters in two halves round ties the other way, and this is the last one there too.
        let upper_half = |value: f32| half::bf16::from_bits(crate::split_master(value).0);
        assert!(
            upper_half(LARGEST_BEFORE_BF16).is_finite()
                && upper_half(LARGEST_BEFORE_BF16.next_up()).is_infinite()
        );
    }

    #[test]
    fn rounding_agrees_with_the_half_crate() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let expected = half::bf16::from_f32(value).to_bits();
                assert_eq!(
                    round_to_bf16(value).to_bits(),
                    u32::from(expected) << 16,
                    "{:#010x}",
                    value.to_bits()
                );
            }
        }
    }
}
