//! A master in two halves: the bf16 weight and the 16 bits that it lacks.
//!
//! Law **FO-5**: joining what was split gives the same bits, for every f32. The upper half is the nearest
//! bf16, ties *away from zero*, which lets the lower half be a signed 16-bit number. A cast to bf16 rounds
//! ties to even instead, so the two differ exactly where the discarded half is 0x8000 and the kept half is
//! even. Magnitudes above the largest bf16 round up to infinity; the master itself is still finite. A NaN
//! keeps its bits, but its upper half alone need not be a NaN.

/// The bf16 bits and the remainder of a master.
///
/// With `u` the bits of `master`: `remainder = u mod 2^16` as a signed number, `high = u / 2^16`, plus one
/// if the remainder is negative.
#[inline(always)]
#[must_use]
pub const fn split_master(master: f32) -> (u16, i16) {
    let bits = master.to_bits();
    let remainder = bits as u16;
    let high = (bits >> 16) as u16;
    (high.wrapping_add(remainder >> 15), remainder.cast_signed())
}

/// The master of a bf16 weight and its remainder: the inverse of [`split_master`].
#[inline(always)]
#[must_use]
pub const fn join_master(high: u16, remainder: i16) -> f32 {
    let low = remainder.cast_unsigned();
    let high = high.wrapping_sub(low >> 15);
    f32::from_bits((high as u32) << 16 | low as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// FO-5, over all bit patterns, NaN and infinities included.
        #[test]
        fn joining_what_was_split_gives_the_same_bits(bits: u32) {
            let (high, remainder) = split_master(f32::from_bits(bits));
            prop_assert_eq!(join_master(high, remainder).to_bits(), bits);
        }

        /// FO-5, the other way round: every pair of halves is some master's.
        #[test]
        fn splitting_what_was_joined_gives_the_same_halves(high: u16, remainder: i16) {
            prop_assert_eq!(split_master(join_master(high, remainder)), (high, remainder));
        }

        /// FO-5: the upper half differs from a cast only in ties.
        #[test]
        fn the_upper_half_is_the_nearest_bf16(master in -1e38_f32..1e38) {
            let (high, remainder) = split_master(master);
            let cast = half::bf16::from_f32(master);
            if remainder == i16::MIN {
                let tie = half::bf16::from_bits(high).to_f32();
                prop_assert!(tie.abs() > master.abs());
            } else {
                prop_assert_eq!(high, cast.to_bits());
            }
        }
    }

    #[test]
    fn ties_round_away_from_zero_where_a_cast_rounds_to_even() {
        for sign in [0, 0x8000_0000] {
            let tie = f32::from_bits(sign | 0x3F80_8000);
            assert_eq!(split_master(tie), ((sign >> 16) as u16 | 0x3F81, i16::MIN));
            assert_eq!(half::bf16::from_f32(tie).to_bits(), (sign >> 16) as u16 | 0x3F80);
        }
    }

    #[test]
    fn a_bf16_weight_has_no_remainder() {
        for high in 0..=u16::MAX {
            assert_eq!(split_master(f32::from_bits(u32::from(high) << 16)), (high, 0));
        }
    }
}
