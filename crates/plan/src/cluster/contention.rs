//! Contention: what lanes of one GPU take from each other.
//!
//! Law: work is slowed only while the other lane runs, by the factor of the two kinds of lanes. Only the
//! one that begins later is charged. A collective takes from other lanes the share of its speed at
//! which other collectives let it go. What collectives take from each other goes by links and not by lanes
//! (`traffic`): if each of two takes f times as long beside the other, both together move 2/f as much as one.
//! One that is not slowed leaves `2/f − 1` to the other, which for f = 2 stands still until the first is over.

use serde::{Deserialize, Serialize};

use crate::layout::LaneKind;

/// Factors on the time of what runs on one lane while another lane runs: 1 is no contention.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Contention {
    /// On the compute lane, while a collective runs.
    pub compute_beside_collective: f64,
    /// On a collective, while the compute lane runs.
    pub collective_beside_compute: f64,
    /// On a collective, while one of another communicator runs: 2 where both want one link.
    pub collective_beside_collective: f64,
    /// On the compute lane, while the quantize lane or the sum lane runs. What these two take from each other
    /// is not modelled.
    pub compute_beside_quantize: f64,
    /// On the quantize lane and on the sum lane, while the compute lane runs.
    pub quantize_beside_compute: f64,
}

impl Default for Contention {
    fn default() -> Self {
        Self {
            compute_beside_collective: 1.0,
            collective_beside_compute: 1.0,
            collective_beside_collective: 1.0,
            compute_beside_quantize: 1.0,
            quantize_beside_compute: 1.0,
        }
    }
}

impl Contention {
    /// The factor on work of a lane of kind `own` while one of kind `other` runs: 1 for two communicators.
    #[must_use]
    pub fn factor(&self, own: LaneKind, other: LaneKind) -> f64 {
        match (own, other) {
            (LaneKind::Compute, LaneKind::Communicator(_)) => self.compute_beside_collective,
            (LaneKind::Compute, LaneKind::Quantize | LaneKind::Sum) => self.compute_beside_quantize,
            (LaneKind::Quantize | LaneKind::Sum, LaneKind::Compute) => self.quantize_beside_compute,
            (LaneKind::Communicator(_), LaneKind::Compute) => self.collective_beside_compute,
            _ => 1.0,
        }
    }

    /// The share of its speed that a collective loses while one before it takes all of a link that both want.
    #[must_use]
    pub fn lost_beside_collective(&self) -> f64 {
        2.0 - 2.0 / self.collective_beside_collective.clamp(1.0, 2.0)
    }
}

/// A stretch of time in which something ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ran {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The share of its speed at which it went.
    pub(crate) share: f64,
}

/// How long work of `length` takes if it starts at `begin` and runs `factor` times slower while something else runs
/// at its full speed, and by as much less slower as that goes slower. `busy` is in order, and nothing overlaps.
#[must_use]
pub(crate) fn stretched(begin: f64, length: f64, busy: &[Ran], factor: f64) -> f64 {
    if factor <= 1.0 || length <= 0.0 {
        return length;
    }
    let first = busy.partition_point(|ran| (ran.to as f64) <= begin);
    let (mut now, mut left) = (begin, length);
    for Ran { from, to, share } in &busy[first..] {
        let (from, to, factor) = (*from as f64, *to as f64, 1.0 + (factor - 1.0) * share);
        let alone = (from - now).max(0.0);
        if left <= alone {
            break;
        }
        left -= alone;
        now = now.max(from);
        let shared = (to - now) / factor;
        if left <= shared {
            return now + left * factor - begin;
        }
        left -= shared;
        now = to;
    }
    now + left - begin
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_collectives_together_move_as_much_as_the_factor_of_both_says() {
        let lost = |factor| {
            Contention { collective_beside_collective: factor, ..Contention::default() }
                .lost_beside_collective()
        };
        assert_eq!([0.5, 1.0, 4.0 / 3.0, 2.0, 3.0].map(lost), [0.0, 0.0, 0.5, 1.0, 1.0]);
    }

    fn stretched(begin: f64, length: f64, busy: &[(u64, u64)], factor: f64) -> f64 {
        let ran: Vec<Ran> = busy.iter().map(|(from, to)| Ran { from: *from, to: *to, share: 1.0 }).collect();
        super::stretched(begin, length, &ran, factor)
    }

    #[test]
    fn what_goes_at_half_its_speed_takes_half_as_much_from_others() {
        let ran = [Ran { from: 0, to: 3, share: 0.5 }, Ran { from: 3, to: 100, share: 1.0 }];
        assert_eq!(super::stretched(0.0, 4.0, &ran, 2.0), 3.0 + 2.0 * 2.0);
    }

    #[test]
    fn work_is_slowed_only_while_the_other_lane_runs() {
        assert_eq!(stretched(0.0, 10.0, &[], 2.0), 10.0);
        assert_eq!(stretched(0.0, 10.0, &[(0, 100)], 2.0), 20.0);
        assert_eq!(stretched(0.0, 10.0, &[(4, 8)], 2.0), 12.0);
        assert_eq!(stretched(0.0, 10.0, &[(4, 8), (9, 100)], 2.0), 4.0 + 4.0 + 1.0 + 2.0 * 3.0);
        assert_eq!(stretched(5.0, 10.0, &[(0, 5), (15, 20)], 2.0), 10.0);
        assert_eq!(stretched(0.0, 10.0, &[(0, 100)], 1.0), 10.0);
    }
}
