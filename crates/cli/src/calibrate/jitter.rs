//! Jitter of local tasks, from measured times.
//!
//! Law: the model is [`Jitter`](warpweft_plan::cluster::Jitter)'s, `time = d · (1 + mean · E)` with E exponential of
//! mean 1.
//! Of n times of one task on one rank, the k-th least is expected at `d · (1 + mean · e)`,
//! `e = 1/n + … + 1/(n−k+1)` (Rényi, 1953). So the ratio ρ of two of them, about the quartiles, gives
//! `mean = (ρ − 1) / (e₂ − ρ · e₁)`; a lower quartile is `d · (1 + mean · ln 4/3)`. Of all tasks, the median
//! counts.

use super::figure::{Figure, middle, percent};
use super::subject::Observation;

/// Fewest times of one task that quartiles are taken of.
const FEWEST: usize = 8;

/// Shortest task whose delays are distinguished from those of the clock, nanoseconds.
const SHORTEST: f64 = 2e4;

/// How late local tasks are.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Delays {
    pub(super) mean: Figure,
}

impl Delays {
    pub(super) fn of(observations: &[Observation]) -> Self {
        let mut means = Vec::new();
        for observation in observations {
            let local =
                observation.plan.tasks.iter().enumerate().filter(|(_, task)| !task.op.is_collective());
            for (number, _) in local {
                let ranks = observation.steps.first().map_or(0, |step| step.ranks.len());
                means.extend((0..ranks).filter_map(|rank| {
                    let times = observation.steps.iter().map(|step| {
                        let (begin, end) = step.span(rank, number, false);
                        (end - begin) as f64
                    });
                    mean(times.collect())
                }));
            }
        }
        let tasks = means.len();
        let mean = middle(means).unwrap_or(0.0);
        let how = match tasks {
            0 => format!("not seen: no task of at least {} µs ran {FEWEST} times", SHORTEST * 1e-3),
            _ => format!(
                "measured: from the quartiles of {tasks} tasks over steps; they mean {} of a task",
                percent(mean)
            ),
        };
        Self { mean: Figure::new(mean, how) }
    }

    /// What a lower quartile would be without delays.
    pub(super) fn without(&self, lower_quartile: f64) -> f64 {
        lower_quartile / (1.0 + self.mean.value * f64::ln(4.0 / 3.0))
    }
}

/// The mean delay of one task, as a share of its time.
fn mean(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    let count = times.len();
    let place = (count / 4).saturating_sub(1);
    let (lower, upper) = (*times.get(place)?, *times.get(count - 1 - place)?);
    if count < FEWEST || lower < SHORTEST {
        return None;
    }
    // The mean of the k-th least of n exponentials: 1/n + 1/(n−1) + … + 1/(n−k+1).
    let expected = |place: usize| (0..=place).map(|earlier| 1.0 / (count - earlier) as f64).sum::<f64>();
    let ratio = upper / lower;
    let scale = expected(count - 1 - place) - ratio * expected(place);
    // Later than any exponential is.
    (scale > 0.1).then(|| ((ratio - 1.0) / scale).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_an_exponential_give_back_its_mean() {
        for expected in [0.0, 0.01, 0.2, 1.0] {
            let quantile = |place: usize| -f64::ln(1.0 - (place as f64 + 0.5) / 401.0);
            let times = (0..401).map(|place| 1e6 * (1.0 + expected * quantile(place))).collect();
            let found = mean(times).unwrap();
            assert!((found - expected).abs() < 0.02 * expected + 1e-9, "{found} is not {expected}");
        }
    }

    #[test]
    fn what_is_too_short_or_too_seldom_says_nothing() {
        assert_eq!(mean(vec![1e6; FEWEST - 1]), None);
        assert_eq!(mean(vec![SHORTEST / 2.0; FEWEST]), None);
    }
}
