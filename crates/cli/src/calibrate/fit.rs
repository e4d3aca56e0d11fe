//! A robust fit of two numbers to many times: `time = a·x + b·y`.
//!
//! Laws:
//! - **FT-1** times that follow the formula give back its numbers, to rounding.
//! - **FT-2** one wrong time among enough right ones changes nothing.
//! - **FT-3** neither number is negative, and `b` is above 0. What cannot be fitted so is an error that says
//!   what to do.
//!
//! The fit minimizes the sum of relative deviations, `Σ |tᵢ − fᵢ| / max(tᵢ, fᵢ)`: every size counts alike, and a time
//! that is far off counts at most 1. That it is least absolute deviations (Boscovich, 1757), not least squares, makes
//! it robust. An optimum of absolute deviations lies on two of the points or on a border, so those candidates alone are
//! tried, all of them: there are few points.

/// One time: how often it contains `a`, how often `b`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) time: f64,
}

/// The two numbers, and how far times are from them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    pub(super) a: f64,
    pub(super) b: f64,
    /// Median of the relative deviations.
    pub(super) residual: f64,
    /// The largest.
    pub(super) worst: f64,
    /// Points.
    pub(super) points: usize,
}

/// The reason why times give no numbers.
#[derive(Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Not enough times to tell the numbers apart.
    #[error("{points} usable times are too few, {NEEDED} are needed; measure more sizes: raise --largest")]
    TooFew {
        /// Times above 0.
        points: usize,
    },
    /// Times that do not grow with size.
    #[error(
        "times do not grow with size, so noise or a constant hides the speed; raise --largest and --repeats, and leave the machine alone meanwhile"
    )]
    Flat,
    /// Times that follow no line.
    #[error(
        "times are {:.0} % off the line through them, {:.0} % are accepted; raise --repeats, and leave the machine alone meanwhile",
        100.0 * residual, 100.0 * NOISIEST
    )]
    Noisy {
        /// Median of the relative deviations.
        residual: f64,
    },
}

warpweft_base::debug_in_words!(FitError);

/// Fewest points.
const NEEDED: usize = 3;

/// Largest median deviation that is accepted.
const NOISIEST: f64 = 0.4;

/// Fits both numbers.
///
/// # Errors
/// [`FitError`].
pub(super) fn fit(points: &[Point]) -> Result<Fit, FitError> {
    let usable = |point: &&Point| point.time > 0.0 && point.time.is_finite() && point.y > 0.0;
    let points: Vec<Point> = points.iter().filter(usable).copied().collect();
    if points.len() < NEEDED {
        return Err(FitError::TooFew { points: points.len() });
    }
    let mut best: Option<(f64, f64, f64)> = None;
    let mut consider = |a: f64, b: f64| {
        if a >= 0.0 && b >= 0.0 && a.is_finite() && b.is_finite() {
            let sum = points.iter().map(|point| deviation(point, a, b)).sum::<f64>();
            if best.is_none_or(|(least, ..)| sum < least) {
                best = Some((sum, a, b));
            }
        }
    };
    for (position, one) in points.iter().enumerate() {
        consider(0.0, one.time / one.y);
        consider(one.time / one.x, 0.0);
        for other in &points[position + 1..] {
            let (left, right) = (one.x * other.y, other.x * one.y);
            let determinant = left - right;
            if determinant.abs() > 1e-9 * (left.abs() + right.abs()) {
                let a = (one.time * other.y - other.time * one.y) / determinant;
                let b = (one.x * other.time - other.x * one.time) / determinant;
                consider(a, b);
            }
        }
    }
    let Some((_, a, b)) = best else { return Err(FitError::Flat) };
    let grows = points.iter().any(|point| b * point.y > 0.1 * a * point.x);
    if !grows {
        return Err(FitError::Flat);
    }
    let mut deviations: Vec<f64> = points.iter().map(|point| deviation(point, a, b)).collect();
    deviations.sort_by(f64::total_cmp);
    let (residual, worst) = (deviations[deviations.len() / 2], deviations[deviations.len() - 1]);
    if residual > NOISIEST {
        return Err(FitError::Noisy { residual });
    }
    Ok(Fit { a, b, residual, worst, points: points.len() })
}

fn deviation(point: &Point, a: f64, b: f64) -> f64 {
    let expected = a * point.x + b * point.y;
    (point.time - expected).abs() / point.time.max(expected)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sizes from 4 KiB, each twice the one before.
    fn ladder(a: f64, b: f64, sizes: u32) -> Vec<Point> {
        let point = |size: u32| {
            let y = 4096.0 * 2f64.powi(size as i32);
            Point { x: 1.0, y, time: a + b * y }
        };
        (0..sizes).map(point).collect()
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() <= 1e-6 * expected.abs()
    }

    proptest! {
        /// FT-1.
        #[test]
        fn a_line_is_given_back(latency in 1e3f64..1e5, per_byte in 1e-3f64..10.0) {
            let found = fit(&ladder(latency, per_byte, 12)).unwrap();
            prop_assert!(close(found.a, latency) && close(found.b, per_byte), "{found:?}");
            prop_assert!(found.worst < 1e-9);
        }

        /// FT-2. Latency and speed each show in several of these sizes.
        #[test]
        fn one_wrong_time_changes_nothing(wrong in 0usize..12, factor in prop::sample::select(vec![0.2, 0.6, 1.5, 4.0, 40.0])) {
            let mut points = ladder(1e5, 1.0, 12);
            points[wrong].time *= factor;
            let found = fit(&points).unwrap();
            prop_assert!(close(found.a, 1e5) && close(found.b, 1.0), "{found:?}");
        }

        /// FT-3.
        #[test]
        fn no_number_is_negative_whatever_the_times(times in prop::collection::vec(0f64..1e9, 0..12)) {
            let points: Vec<Point> =
                ladder(0.0, 1.0, 12).into_iter().zip(times).map(|(point, time)| Point { time, ..point }).collect();
            if let Ok(found) = fit(&points) {
                prop_assert!(found.a >= 0.0 && found.b > 0.0 && found.residual <= NOISIEST);
            }
        }

        #[test]
        fn noise_of_a_few_percent_moves_the_numbers_by_no_more(noise in prop::collection::vec(-0.03f64..0.03, 14)) {
            let mut points = ladder(1e5, 1.0, 14);
            points.iter_mut().zip(noise).for_each(|(point, noise)| point.time *= 1.0 + noise);
            let found = fit(&points).unwrap();
            prop_assert!((found.b - 1.0).abs() < 0.1 && (found.a / 1e5 - 1.0).abs() < 0.1, "{found:?}");
        }
    }

    #[test]
    fn a_latency_of_nothing_is_found() {
        let found = fit(&ladder(0.0, 0.5, 8)).unwrap();
        assert_eq!((found.a, found.b), (0.0, 0.5));
    }

    #[test]
    fn what_cannot_be_fitted_says_what_to_do() {
        assert_eq!(fit(&ladder(1.0, 1.0, 2)), Err(FitError::TooFew { points: 2 }));
        let constant = ladder(1e9, 0.0, 8);
        assert_eq!(fit(&constant), Err(FitError::Flat));
        // Times of which each contradicts the next.
        let mut wild = ladder(0.0, 1.0, 9);
        wild.iter_mut().enumerate().for_each(|(place, point)| point.time *= 100f64.powi(place as i32 % 3));
        let refused = fit(&wild).unwrap_err();
        assert!(matches!(refused, FitError::Noisy { .. } | FitError::Flat), "{refused:?}");
        assert!(refused.to_string().contains("--repeats"), "{refused}");
    }
}
