//! Small floating-point elements: one encoder for E2M1, E4M3 and E5M2.
//!
//! Conversion is round to nearest, ties to even, saturating at the largest finite value. The encoder is
//! branch-free integer arithmetic on the f32 bits, so loops over it vectorize. The decoder is a table.
//! Nothing here knows about scales; the obvious (slow) definition is in [`super::reference`].

/// The parameters of a sign-magnitude element of at most eight bits.
pub(super) trait Minifloat {
    /// Mantissa bits.
    const MANTISSA: u32;
    /// Exponent bias.
    const BIAS: u32;
    /// Bits of the element, sign included.
    const BITS: u32;
    /// Largest finite magnitude.
    const MAX: f32;
    /// Code of every NaN input; the sign is dropped.
    const NAN: u8;
    /// Magnitude codes from here on up decode to infinity (mantissa 0) or NaN.
    const FIRST_SPECIAL: u8;
    /// Whether `FIRST_SPECIAL` itself is infinity.
    const HAS_INFINITY: bool;
}

/// FP4: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. No NaN, no infinity.
pub(super) struct E2m1;

impl Minifloat for E2m1 {
    const MANTISSA: u32 = 1;
    const BIAS: u32 = 1;
    const BITS: u32 = 4;
    const MAX: f32 = 6.0;
    const NAN: u8 = 7;
    const FIRST_SPECIAL: u8 = 8;
    const HAS_INFINITY: bool = false;
}

/// FP8 without infinity; 0x7F and 0xFF are NaN.
pub(super) struct E4m3;

impl Minifloat for E4m3 {
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const BITS: u32 = 8;
    const MAX: f32 = 448.0;
    const NAN: u8 = 0x7F;
    const FIRST_SPECIAL: u8 = 0x7F;
    const HAS_INFINITY: bool = false;
}

/// FP8, IEEE-like. Infinity decodes but is never produced.
pub(super) struct E5m2;

impl Minifloat for E5m2 {
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const BITS: u32 = 8;
    const MAX: f32 = 57344.0;
    const NAN: u8 = 0x7F;
    const FIRST_SPECIAL: u8 = 0x7C;
    const HAS_INFINITY: bool = true;
}

/// The value of every code of E2M1.
#[must_use]
pub const fn e2m1_values() -> [f32; 16] {
    let (all, mut values, mut code) = (decode_table::<E2m1>(), [0.0; 16], 0);
    while code < values.len() {
        values[code] = all[code];
        code += 1;
    }
    values
}

/// The value of every code of E4M3; 0x7F and 0xFF are no numbers.
#[must_use]
pub const fn e4m3_values() -> [f32; 256] {
    decode_table::<E4m3>()
}

/// 2^`exponent` for a normal f32.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Smallest magnitude with a full mantissa.
const fn min_normal<F: Minifloat>() -> f32 {
    power_of_two(1 - F::BIAS as i32)
}

/// Distance between neighbouring magnitudes below [`min_normal`].
const fn subnormal_step<F: Minifloat>() -> f32 {
    power_of_two(1 - F::BIAS as i32 - F::MANTISSA as i32)
}

/// The code of `value`, in the low [`Minifloat::BITS`] bits.
#[inline(always)]
pub(super) fn encode<F: Minifloat>(value: f32) -> u8 {
    let bits = value.to_bits();
    let magnitude = f32::from_bits(bits & 0x7FFF_FFFF);
    // False for NaN too, so NaN continues as MAX.
    let clamped = if magnitude < F::MAX { magnitude } else { F::MAX };

    // The binade; for subnormals, that of the smallest normal, whose step they share. Adding a power of two
    // whose unit in the last place is that step rounds to a whole number of steps, ties to even.
    let normal = if clamped > min_normal::<F>() { clamped } else { min_normal::<F>() };
    let binade = normal.to_bits() & 0x7F80_0000;
    let addend = binade + ((23 - F::MANTISSA) << 23);
    let steps = (clamped + f32::from_bits(addend)).to_bits().wrapping_sub(addend);

    // Codes count steps, and every binade above the smallest has 2^MANTISSA more below it.
    let below = (binade >> (23 - F::MANTISSA)) - ((128 - F::BIAS) << F::MANTISSA);
    let sign = (bits >> 31) << (F::BITS - 1);
    if magnitude.is_nan() { F::NAN } else { ((steps + below) | sign) as u8 }
}

/// The value of `code`, at compile time or run time.
pub(super) const fn decode<F: Minifloat>(code: u8) -> f32 {
    let sign_bit = 1u8 << (F::BITS - 1);
    let magnitude = code & (sign_bit - 1);
    let value = if magnitude >= F::FIRST_SPECIAL {
        if F::HAS_INFINITY && magnitude == F::FIRST_SPECIAL { f32::INFINITY } else { f32::NAN }
    } else {
        let exponent = (magnitude as u32) >> F::MANTISSA;
        let mantissa = (magnitude as u32) & ((1 << F::MANTISSA) - 1);
        if exponent == 0 {
            mantissa as f32 * subnormal_step::<F>()
        } else {
            f32::from_bits(((exponent + 127 - F::BIAS) << 23) | (mantissa << (23 - F::MANTISSA)))
        }
    };
    if code & sign_bit == 0 { value } else { -value }
}

/// [`decode`] of every byte. For a four-bit element only the low nibble counts.
pub(super) const fn decode_table<F: Minifloat>() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        table[code] = decode::<F>((code & ((1 << F::BITS) - 1)) as u8);
        code += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    fn round_trip<F: Minifloat>() {
        for code in 0..1u32 << F::BITS {
            let code = code as u8;
            let value = decode::<F>(code);
            let expected = if value.is_nan() {
                F::NAN
            } else if value.is_infinite() {
                // Saturates to the largest finite value of the same sign.
                (F::FIRST_SPECIAL - 1) | (code & (1 << (F::BITS - 1)))
            } else {
                code
            };
            assert_eq!(encode::<F>(value), expected, "code {code:#04x} = {value}");
        }
    }

    #[test]
    fn encode_of_decode_is_the_identity_on_all_codes() {
        round_trip::<E2m1>();
        round_trip::<E4m3>();
        round_trip::<E5m2>();
    }

    /// Every f32 exponent and sign, with mantissas at, beside and between all rounding ties.
    fn interesting_values() -> impl Iterator<Item = f32> {
        (0..512u32).flat_map(|high| {
            (0..64u32).flat_map(move |middle| {
                [0, 1, 0x1_0000, 0x1_FFFF].map(|low| f32::from_bits((high << 23) | (middle << 17) | low))
            })
        })
    }

    #[test]
    fn the_encoder_agrees_with_the_nearest_value_search() {
        for value in interesting_values() {
            let bits = value.to_bits();
            assert_eq!(encode::<E2m1>(value), reference::e2m1(value), "e2m1 {bits:#010x}");
            assert_eq!(encode::<E4m3>(value), reference::e4m3(value), "e4m3 {bits:#010x}");
            assert_eq!(encode::<E5m2>(value), reference::e5m2(value), "e5m2 {bits:#010x}");
        }
    }

    #[test]
    fn special_inputs_saturate_and_nan_loses_its_sign() {
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7F80_0001)] {
            assert_eq!(encode::<E2m1>(nan), 7);
            assert_eq!(encode::<E4m3>(nan), 0x7F);
            assert_eq!(encode::<E5m2>(nan), 0x7F);
        }
        assert_eq!(encode::<E2m1>(f32::INFINITY), 7);
        assert_eq!(encode::<E2m1>(f32::NEG_INFINITY), 15);
        assert_eq!(encode::<E4m3>(464.0), 0x7E);
        assert_eq!(encode::<E4m3>(f32::NEG_INFINITY), 0xFE);
        assert_eq!(encode::<E5m2>(f32::INFINITY), 0x7B);
    }

    /// Conformance I2.
    #[test]
    fn i2_negative_zero_and_negatives_that_round_to_zero_keep_their_sign() {
        assert_eq!(encode::<E2m1>(-0.0), 8);
        assert_eq!(encode::<E2m1>(-0.25), 8);
        assert_eq!(encode::<E4m3>(-0.0), 0x80);
        assert_eq!(encode::<E5m2>(-1e-30), 0x80);
    }
}
