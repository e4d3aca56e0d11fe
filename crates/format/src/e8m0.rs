//! E8M0: a power of two in one byte, the scale of MXFP8.
//!
//! Code c is 2^(c−127). Code 0 is 2^-127, a subnormal f32 and not zero; code 255 is NaN and not infinity.

const SUBNORMAL: u32 = 0x0040_0000;

/// The code of the smallest power of two that is not below `value`; `value` must not be negative.
/// Zero gives 0, infinity 254, NaN 255.
#[inline(always)]
pub(super) fn encode(value: f32) -> u8 {
    if value.is_nan() {
        return 255;
    }
    let bits = value.to_bits();
    let (exponent, mantissa) = ((bits >> 23) as u8, bits & 0x007F_FFFF);
    if exponent == 255 {
        return 254;
    }
    let is_exact_or_largest = mantissa == 0 || exponent == 254 || (exponent == 0 && mantissa <= SUBNORMAL);
    exponent + u8::from(!is_exact_or_largest)
}

/// The value of `code`.
#[inline(always)]
pub(super) fn decode(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(SUBNORMAL),
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

/// One over the value of `code`, exactly.
#[inline(always)]
pub(super) fn reciprocal(code: u8) -> f32 {
    match code {
        255 => f32::NAN,
        254 => f32::from_bits(SUBNORMAL),
        _ => f32::from_bits(u32::from(254 - code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode_of_decode_is_the_identity_on_all_codes() {
        for code in 0..=255u8 {
            assert_eq!(encode(decode(code)), code);
        }
    }

    #[test]
    fn encode_rounds_up_to_the_next_power_of_two() {
        for code in 1..=253u8 {
            let above = f32::from_bits(decode(code).to_bits() + 1);
            assert_eq!(encode(above), code + 1);
        }
        assert_eq!(encode(f32::MAX), 254);
        assert_eq!(encode(f32::INFINITY), 254);
        assert_eq!(encode(0.0), 0);
        assert_eq!(encode(f32::from_bits(1)), 0);
        assert_eq!(encode(f32::from_bits(SUBNORMAL + 1)), 1);
    }

    #[test]
    fn the_reciprocal_is_exact() {
        for code in 0..=254u8 {
            assert_eq!(f64::from(decode(code)) * f64::from(reciprocal(code)), 1.0, "code {code}");
        }
    }

    /// Conformance G1.
    #[test]
    fn g1_code_zero_is_a_subnormal_and_code_255_is_nan() {
        assert_eq!(decode(0), 2f32.powi(-127));
        assert!(decode(255).is_nan() && reciprocal(255).is_nan());
    }
}
