//! The scale of an amax, which all FP8 formats with an f32 scale share.
//!
//! ```text
//! a < epsilon: a = epsilon
//! a is 0, infinite or NaN: s = 1
//! s = MAX / a, at most FMAX; as a power of two: mantissa dropped
//! scale_inv = 1 / s
//! code = FP8(x · s);  y = code · scale_inv
//! ```
//!
//! Both divisions are IEEE and subnormals are kept (source: the TransformerEngine full quantize kernels).

use super::format::{Epsilon, Fp8Element, ScaleRule};
use super::minifloat::{E4m3, E5m2, Minifloat, decode_table};
use super::via::Value;

static E4M3_VALUES: [f32; 256] = decode_table::<E4m3>();
static E5M2_VALUES: [f32; 256] = decode_table::<E5m2>();

impl Fp8Element {
    /// Largest finite magnitude.
    #[must_use]
    pub const fn largest(self) -> f32 {
        match self {
            Self::E4m3 => E4m3::MAX,
            Self::E5m2 => E5m2::MAX,
        }
    }

    /// The value of every code.
    pub(super) fn values(self) -> &'static [f32; 256] {
        match self {
            Self::E4m3 => &E4M3_VALUES,
            Self::E5m2 => &E5M2_VALUES,
        }
    }
}

/// A scale and its reciprocal, as the cast and dequantize use them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp8Scale {
    /// s: the cast multiplies with it.
    pub encode: f32,
    /// 1/s: dequantize multiplies with it.
    pub decode: f32,
}

impl Fp8Scale {
    /// The scale for values up to `amax`.
    #[must_use]
    pub fn new(element: Fp8Element, rule: ScaleRule, epsilon: Epsilon, amax: f32) -> Self {
        let amax = if amax < epsilon.value() { epsilon.value() } else { amax };
        let encode = if amax == 0.0 || !amax.is_finite() {
            1.0
        } else {
            let scale = (element.largest() / amax).min(f32::MAX);
            match rule {
                ScaleRule::Float32 => scale,
                ScaleRule::PowerOfTwo => f32::from_bits(scale.to_bits() & 0xFF80_0000),
            }
        };
        Self { encode, decode: 1.0 / encode }
    }
}

/// `out[i] = values[codes[i]] · factor`.
#[inline(always)]
pub(super) fn dequantize_slice<V: Value>(values: &[f32; 256], codes: &[u8], factor: f32, out: &mut [V]) {
    for (&code, out) in codes.iter().zip(out) {
        *out = V::of(values[usize::from(code)] * factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(amax: f32, epsilon: f32) -> f32 {
        let epsilon = Epsilon::new(epsilon).unwrap();
        Fp8Scale::new(Fp8Element::E4m3, ScaleRule::Float32, epsilon, amax).encode
    }

    /// Conformance G4: an amax without a scale means scale 1.
    #[test]
    fn g4_an_amax_of_zero_or_infinity_gives_scale_one() {
        for amax in [0.0, f32::INFINITY, f32::NAN] {
            assert_eq!(scale(amax, 0.0), 1.0);
        }
    }

    #[test]
    fn epsilon_bounds_the_amax_from_below_before_zero_is_tested() {
        assert_eq!(scale(0.0, 100.0), 4.48);
        assert_eq!(scale(99.0, 100.0), 4.48);
        assert_eq!(scale(224.0, 100.0), 2.0);
    }

    #[test]
    fn an_overflowing_scale_is_the_largest_number_or_power_of_two() {
        assert_eq!(scale(1e-40, 0.0), f32::MAX);
        let pow2 = Fp8Scale::new(Fp8Element::E4m3, ScaleRule::PowerOfTwo, Epsilon::ZERO, 1e-40);
        assert_eq!(pow2.encode, 2f32.powi(127));
    }
}
