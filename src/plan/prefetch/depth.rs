//! So many uses ahead.
//!
//! Law: use i is asked for at the stage of use i−n; the first n at the beginning.

use super::Demand;

pub(super) fn issues(demands: &[Demand<'_>], depth: usize) -> Vec<usize> {
    let ahead = |use_number: usize| use_number.checked_sub(depth);
    (0..demands.len()).map(|number| ahead(number).map_or(0, |earlier| demands[earlier].stage)).collect()
}
