//! The median of several measurements.
//!
//! Law: the median, so that of three or more one late step or rank decides nothing; of an even number the
//! later of the two in the middle, but for the steps of one trial ([`lower_median`]): of two ranks the slower
//! is what a step waits for, of two steps the faster is the rule. It is in this crate because every one that
//! measures may import it.

use std::cmp::Ordering;

/// The median of some measurements, the later of the two in the middle of an even number; `None` of none.
#[must_use]
pub fn median<T: Copy + PartialOrd>(mut measured: Vec<T>) -> Option<T> {
    measured.sort_unstable_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    measured.get(measured.len() / 2).copied()
}

/// As [`median`], but the earlier of the two in the middle of an even number: of two steps the faster, so
/// that a slow one decides nothing.
#[must_use]
pub fn lower_median<T: Copy + PartialOrd>(mut measured: Vec<T>) -> Option<T> {
    measured.sort_unstable_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    measured.get(measured.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_the_later_of_two_middles() {
        assert_eq!((median(vec![3, 1, 2]), median(vec![4, 1, 2, 3])), (Some(2), Some(3)));
        assert_eq!((lower_median(vec![3, 1, 2]), lower_median(vec![4, 1, 2, 3])), (Some(2), Some(2)));
        assert_eq!((lower_median(vec![9, 2]), lower_median(Vec::<u64>::new())), (Some(2), None));
        assert_eq!((median(vec![0.5, 0.25]), median(Vec::<u64>::new())), (Some(0.5), None));
    }
}
