//! Reproducible pseudo-random numbers that follow from seed and index alone.
//!
//! Law: there is no state. Whoever hashes the same gets the same, on every rank and in any order.

/// One output of `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014) from state `state`.
pub const fn mixed(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number above 0 and at most 1, of the upper 53 bits.
pub fn unit(bits: u64) -> f64 {
    ((bits >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first two outputs of the published generator with seed 0.
    #[test]
    fn outputs_are_those_of_the_published_generator() {
        assert_eq!(mixed(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mixed(0x9E37_79B9_7F4A_7C15), 0x6E78_9E6A_A1B9_65F4);
    }

    #[test]
    fn a_unit_is_never_zero_and_never_above_one() {
        assert!(unit(0) > 0.0);
        assert_eq!(unit(u64::MAX), 1.0);
    }
}
