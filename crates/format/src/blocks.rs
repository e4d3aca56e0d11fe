//! Values in blocks of MXFP8: gradients on the wire.
//!
//! Law: values are whole blocks of 32 neighbours, with the codes and scales of rowwise
//! [`Format::Mxfp8`](super::Format). A block with an infinity or NaN decodes to NaN as a whole, so sums of it are
//! not finite. No finite value saturates; from 248 · 2¹²⁰ on they round to infinity.

use super::e8m0;
use super::format::Fp8Element;
use super::fp8::dequantize_slice;
use super::minifloat::{E4m3, Minifloat, encode};
use super::mxfp8::BLOCK;

/// Elements that share a scale.
pub const MXFP8_BLOCK: usize = BLOCK;

/// Quantizes `values`: a code each, a scale for every [`MXFP8_BLOCK`]. A block that is not whole is left out.
pub fn quantize_mxfp8(values: &[f32], codes: &mut [u8], scales: &mut [u8]) {
    let blocks = values.chunks_exact(BLOCK).zip(codes.chunks_exact_mut(BLOCK)).zip(scales);
    for ((values, codes), scale) in blocks {
        // The largest of all magnitudes, whose bits are ordered as they are.
        let largest = values.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & !(1 << 31)));
        if largest >= f32::INFINITY.to_bits() {
            *scale = 255;
            codes.fill(E4m3::NAN);
            continue;
        }
        *scale = e8m0::encode(f32::from_bits(largest) * (1.0 / E4m3::MAX));
        let factor = e8m0::reciprocal(*scale);
        for (code, value) in codes.iter_mut().zip(values) {
            *code = encode::<E4m3>(value * factor);
        }
    }
}

/// Dequantizes codes and scales of [`quantize_mxfp8`].
pub fn dequantize_mxfp8(codes: &[u8], scales: &[u8], values: &mut [f32]) {
    let blocks = codes.chunks_exact(BLOCK).zip(values.chunks_exact_mut(BLOCK)).zip(scales);
    for ((codes, values), scale) in blocks {
        dequantize_slice(Fp8Element::E4m3.values(), codes, e8m0::decode(*scale), values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Directions, Format, Shape, Via, quantize};
    use warpweft_base::noise::{mixed, unit};

    fn sent(values: &[f32]) -> (Vec<u8>, Vec<u8>, Vec<f32>) {
        let (mut codes, mut scales) = (vec![0; values.len()], vec![0; values.len() / BLOCK]);
        quantize_mxfp8(values, &mut codes, &mut scales);
        let mut decoded = vec![0.0; values.len()];
        dequantize_mxfp8(&codes, &scales, &mut decoded);
        (codes, scales, decoded)
    }

    #[test]
    fn values_are_quantized_as_the_rows_of_a_weight() {
        let shape = Shape::new(32, 96);
        let exponent = |at: usize| ((mixed(at as u64 / 40) % 300) as i32 - 150).clamp(-149, 120);
        let value = |at: usize| (unit(mixed(at as u64)) - 0.5) as f32 * 2.0_f32.powi(exponent(at));
        let values: Vec<f32> = (0..shape.elements()).map(value).collect();
        let planes = quantize(Format::Mxfp8, Directions::Rowwise, Via::None, shape, &values).unwrap();
        let planes = planes.rowwise.unwrap();
        let (codes, scales, _) = sent(&values);
        assert_eq!(codes, planes.data[..shape.elements()]);
        let rows =
            planes.scale.chunks_exact(Format::Mxfp8.scale_row_bytes(crate::Orientation::Rowwise, shape));
        let found: Vec<u8> = rows.take(shape.rows).flat_map(|row| row[..3].to_vec()).collect();
        assert_eq!(scales, found);
    }

    #[test]
    fn a_block_with_a_value_that_is_not_finite_is_no_number_and_its_neighbours_are() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = [1.0_f32; 3 * BLOCK];
            values[BLOCK + 7] = value;
            let (_, scales, decoded) = sent(&values);
            assert_eq!(scales[1], 255);
            for (at, value) in decoded.iter().enumerate() {
                assert_eq!(value.is_nan(), at / BLOCK == 1, "{at}");
            }
        }
    }

    #[test]
    fn no_finite_value_saturates_and_the_largest_round_to_infinity() {
        for exponent in -120..=127 {
            let largest = f32::from_bits((2.0_f32.powi(exponent)).to_bits() | 0x007F_FFFF);
            let (codes, _, decoded) = sent(&[largest; BLOCK]);
            // Up to a sixteenth is what three bits of mantissa lose.
            let near = (decoded[0] - largest).abs() <= largest / 16.0;
            assert!(codes[0] < 0x7E && (near || exponent == 127 && decoded[0].is_infinite()), "2^{exponent}");
        }
        let limit = 248.0 * 2.0_f32.powi(120);
        assert!(sent(&[limit; BLOCK]).2[0].is_infinite());
        assert!(sent(&[f32::from_bits(limit.to_bits() - 1); BLOCK]).2[0].is_finite());
    }

    #[test]
    fn zeros_and_the_smallest_values_come_back_with_their_signs() {
        for value in [0.0, -0.0, f32::from_bits(1 << 15), -f32::from_bits(1 << 15)] {
            let (_, scales, decoded) = sent(&[value; BLOCK]);
            assert_eq!((scales[0], decoded[0].to_bits()), (0, value.to_bits()), "{value:e}");
        }
    }
}
