//! Axes: round tick values, and where a value lies on the page.
//!
//! Any two ends make an axis, even equal ones: it is widened until it has a length.

/// The farthest end of an axis.
const MOST: f64 = f64::MAX / 4.0;

/// A range of values laid along a range of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

/// Round values within an axis, with the digits they need after the point.
#[derive(Debug)]
pub(super) struct Ticks {
    pub(super) values: Vec<f64>,
    decimals: usize,
}

impl Axis {
    /// Puts `low` at pixel `from` and `high` at pixel `to`; `from` may be the larger one.
    pub(super) fn new(low: f64, high: f64, from: f64, to: f64) -> Self {
        let (low, high) =
            if low.is_nan() || high.is_nan() { (0.0, 1.0) } else { (low.min(high), low.max(high)) };
        // What widens an axis, here or before, must not widen it beyond all numbers.
        let [low, high] = [low, high].map(|end| end.clamp(-MOST, MOST));
        // Too short to tell its ends apart in an `f64`: show a little around them.
        let least = 1e-9 * low.abs().max(high.abs()).max(1e-3);
        let (low, high) = if high - low < least {
            let half = 0.05 * low.abs().max(1e-3);
            (low - half, high + half)
        } else {
            (low, high)
        };
        Self { low, high, from, to }
    }

    /// The pixel of a value.
    pub(super) fn at(&self, value: f64) -> f64 {
        // Halved, so that the difference of two huge values stays finite.
        let share = (value / 2.0 - self.low / 2.0) / (self.high / 2.0 - self.low / 2.0);
        self.from + share * (self.to - self.from)
    }

    /// Round values, about one every `spacing` pixels.
    pub(super) fn ticks(&self, spacing: f64) -> Ticks {
        let count = ((self.to - self.from).abs() / spacing).clamp(1.0, 100.0);
        let rough = self.high / count - self.low / count;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = step.into_iter().find(|&step| step >= rough * 0.999).unwrap_or(rough);
        let first = (self.low / step).ceil();
        let values = (0..200).map(|n| (first + f64::from(n)) * step);
        let slack = step * 1e-6;
        Ticks {
            values: values.take_while(|&value| value <= self.high + slack).collect(),
            decimals: (-(step * 1.000_001).log10().floor()).clamp(0.0, 12.0) as usize,
        }
    }
}

impl Ticks {
    /// A value as written at its tick.
    pub(super) fn label(&self, value: f64) -> String {
        if value.abs() >= 1e9 {
            return format!("{value:.3e}");
        }
        let text = format!("{value:.*}", self.decimals);
        // A rounding error below the last digit must not print as minus zero.
        match text.trim_start_matches(['-', '0', '.']) {
            "" => text.trim_start_matches('-').to_owned(),
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn labels(low: f64, high: f64) -> Vec<String> {
        let ticks = Axis::new(low, high, 0.0, 500.0).ticks(100.0);
        ticks.values.iter().map(|&value| ticks.label(value)).collect()
    }

    #[test]
    fn ticks_are_round_and_show_the_digits_they_need() {
        assert_eq!(labels(0.0, 10.0), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(labels(-0.3, 0.31), ["-0.2", "0.0", "0.2"]);
        assert_eq!(labels(1234.5, 1234.93), ["1234.5", "1234.6", "1234.7", "1234.8", "1234.9"]);
    }

    #[test]
    fn the_ends_of_the_axis_are_the_ends_of_its_pixels() {
        let axis = Axis::new(2.0, 4.0, 300.0, 100.0);
        assert_eq!([2.0, 3.0, 4.0].map(|value| axis.at(value)), [300.0, 200.0, 100.0]);
    }

    proptest! {
        #[test]
        fn any_two_numbers_make_an_axis_with_finite_ticks(low: f64, high: f64) {
            let axis = Axis::new(low, high, 40.0, 900.0);
            let ticks = axis.ticks(80.0);
            prop_assert!(ticks.values.len() <= 200);
            for &value in &ticks.values {
                prop_assert!(axis.at(value).is_finite());
                prop_assert!(!ticks.label(value).is_empty());
            }
        }

        #[test]
        fn an_ordinary_axis_has_a_handful_of_ticks_inside_it(
            low in -1e6..1e6f64,
            length in 1e-3..1e6f64,
        ) {
            let axis = Axis::new(low, low + length, 0.0, 800.0);
            let ticks = axis.ticks(100.0);
            prop_assert!((2..=9).contains(&ticks.values.len()), "{:?}", ticks);
            for &value in &ticks.values {
                prop_assert!((-0.1..=800.1).contains(&axis.at(value)));
            }
        }
    }
}
