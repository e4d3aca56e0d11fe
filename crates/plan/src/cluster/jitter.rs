//! Jitter: how late a rank is.
//!
//! A local task of `d` nanoseconds takes `d · slow(rank) · (1 + mean · E)` on a rank, where E is drawn from
//! the exponential distribution with mean 1 for every rank, step and task, and `slow` is `straggler_factor`
//! for a random `straggler_share` of the ranks and 1 for the others. A collective takes the same time on all
//! ranks; it begins when the last one arrives.
//!
//! Why exponential? It has one parameter, is never negative, and the maximum over p ranks has the mean
//! `mean · d · H_p`, with `H_p = 1 + 1/2 + … + 1/p ≈ ln p + 0.577`: it grows with the number of ranks as
//! delays of independent machines do. That delays are independent is an assumption; a hot rack is a matter
//! for stragglers.
//!
//! Law: a draw is a function of seed, rank, step and task. The order of asking changes nothing, and a seed
//! gives the same times on every machine.

use serde::{Deserialize, Serialize};

use warpweft_base::noise::{mixed, unit};

/// How late ranks are.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Jitter {
    /// Chooses the draws.
    pub seed: u64,
    /// Mean delay of a local task, as a share of its time.
    pub mean: f64,
    /// Share of the ranks that are stragglers, 0 to 1.
    pub straggler_share: f64,
    /// How many times as long a straggler's local tasks take, from 1 on.
    pub straggler_factor: f64,
}

impl Default for Jitter {
    fn default() -> Self {
        Self { seed: 0, mean: 0.0, straggler_share: 0.0, straggler_factor: 1.0 }
    }
}

impl Jitter {
    /// Whether all ranks are alike.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.mean == 0.0 && (self.straggler_share == 0.0 || self.straggler_factor == 1.0)
    }

    /// The constant factor of a rank.
    #[must_use]
    pub fn slow(&self, rank: u32) -> f64 {
        let drawn = unit(mixed(self.seed ^ mixed(u64::from(rank) ^ (1 << 40))));
        if drawn <= self.straggler_share && self.straggler_share > 0.0 { self.straggler_factor } else { 1.0 }
    }

    /// The factor of one task in one step on one rank, without [`Jitter::slow`].
    #[must_use]
    pub fn factor(&self, rank: u32, step: u64, task: u32) -> f64 {
        if self.mean == 0.0 {
            return 1.0;
        }
        let key = mixed(step ^ mixed(u64::from(rank) << 32 | u64::from(task)));
        1.0 - self.mean * unit(mixed(self.seed ^ key)).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_the_mean_that_was_asked_for_and_the_maximum_that_follows() {
        let jitter = Jitter { seed: 7, mean: 0.1, ..Jitter::default() };
        let (ranks, steps) = (64u32, 4000u64);
        let mut sum = 0.0;
        let mut longest = 0.0;
        for step in 0..steps {
            let delays = (0..ranks).map(|rank| jitter.factor(rank, step, 3) - 1.0);
            let (total, most) = delays.fold((0.0, 0.0f64), |(sum, most), d| (sum + d, most.max(d)));
            sum += total;
            longest += most;
        }
        let harmonic: f64 = (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum();
        let mean = sum / (f64::from(ranks) * steps as f64);
        assert!((mean - 0.1).abs() < 0.002, "{mean}");
        let most = longest / steps as f64;
        assert!((most - 0.1 * harmonic).abs() < 0.01, "{most} is not {}", 0.1 * harmonic);
    }

    #[test]
    fn the_share_of_stragglers_is_the_share_asked_for() {
        let jitter = Jitter { straggler_share: 0.25, straggler_factor: 2.0, ..Jitter::default() };
        let slow = (0..10_000).filter(|rank| jitter.slow(*rank) == 2.0).count();
        assert!((2300..2700).contains(&slow), "{slow}");
        assert!(Jitter::default().is_none() && !jitter.is_none());
    }
}
