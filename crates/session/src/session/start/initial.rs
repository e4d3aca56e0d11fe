//! Initial master weights that do not depend on how weights are sharded.
//!
//! Law: a value follows from the seed, the weight's name and the value's place in the whole weight alone. So any
//! number of ranks, in any replicas and processes, begins with the same weights.

#[doc(inline)]
pub use crate::checkpoint::ranks::MasterRows;
use warpweft_base::noise::{mixed, unit};

/// All zeros, for [`SessionBuilder::initialize`]: weights that [`Session::import`] or [`Session::import_parts`]
/// replaces before the first step, and those that are meant to begin like this. Where one factor of a product of two
/// weights is zeros, the gradient of the other is zeros; where both are, they learn nothing.
///
/// [`SessionBuilder::initialize`]: crate::session::SessionBuilder::initialize
/// [`Session::import`]: crate::session::Session::import
/// [`Session::import_parts`]: crate::session::Session::import_parts
pub const fn zeros() -> impl Fn(MasterRows<'_>, &mut [f32]) + Clone + Send + Sync + 'static {
    |_, values| values.fill(0.0)
}

/// Normally distributed masters of mean 0, for
/// [`SessionBuilder::initialize`](crate::session::SessionBuilder::initialize).
///
/// Value `i` of weight `name` is made of two uniform numbers, hashes of `seed`, `name` and `i`, by the transform of
/// Box and Muller (1958): `deviation · √(−2 ln u) · cos(2πv)`. Computed in f64, rounded once.
pub fn normal(
    seed: u64,
    deviation: f32,
) -> impl Fn(MasterRows<'_>, &mut [f32]) + Clone + Send + Sync + 'static {
    move |rows, values| {
        let weight = rows.weight.bytes().fold(mixed(seed), |hash, byte| mixed(hash ^ u64::from(byte)));
        for (place, value) in (rows.first_element() as u64..).zip(values) {
            let hash = mixed(weight ^ place);
            let (u, v) = (unit(hash), unit(mixed(hash)));
            let radius = (-2.0 * u.ln()).sqrt();
            *value = (f64::from(deviation) * radius * (std::f64::consts::TAU * v).cos()) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 64;
    const COLUMNS: usize = 48;

    fn whole(seed: u64, name: &str) -> Vec<f32> {
        let mut values = vec![f32::NAN; ROWS * COLUMNS];
        normal(seed, 0.5)(MasterRows::from_the_first(name, COLUMNS), &mut values);
        values
    }

    #[test]
    fn rows_begin_alike_however_many_ranks_hold_them() {
        let values = whole(3, "up");
        for rows in [1, 7, 16] {
            for (number, part) in values.chunks(rows * COLUMNS).enumerate() {
                let mut own = vec![0.0; part.len()];
                let place = MasterRows { weight: "up", first_row: number * rows, columns: COLUMNS };
                normal(3, 0.5)(place, &mut own);
                assert_eq!(own, part);
            }
        }
    }

    #[test]
    fn weights_and_seeds_differ() {
        assert_ne!(whole(3, "up"), whole(4, "up"));
        assert_ne!(whole(3, "up"), whole(3, "down"));
    }

    #[test]
    fn values_are_finite_and_have_the_mean_and_deviation_asked_for() {
        let values = whole(3, "up");
        let count = values.len() as f64;
        let mean = values.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
        let variance = values.iter().map(|value| (f64::from(*value) - mean).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 0.05 && (variance.sqrt() - 0.5).abs() < 0.02, "{mean} {variance}");
        let within = values.iter().filter(|value| value.abs() < 0.5).count() as f64 / count;
        assert!((within - 0.6827).abs() < 0.03, "{within}");
    }
}
