//! The exposure of a timeline, step by step and rank by rank.
//!
//! **TR-2** A collective begins when its last rank arrives. The slice of a rank says when that rank
//! arrived; the same task of the same step on the other ranks that take part says when they did. The time up to
//! the last arrival is waiting, the rest is communication. A rank missing from the timeline cannot
//! be waited for, so a recording of one rank counts its whole slice as communication.

use std::collections::{BTreeMap, HashMap};

use super::exposure::{Exposure, exposure};
use super::timeline::{LaneKind, Slice, Timeline, hull};
use warpweft_base::id::{RankId, TaskId};
use warpweft_base::time::{Interval, Nanoseconds};

/// The time of one step of one rank, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepExposure {
    /// The rank.
    pub rank: RankId,
    /// The step.
    pub step: u64,
    /// From the first begin to the last end of the rank's slices of this step.
    pub window: Interval,
    /// The lengths.
    pub exposure: Exposure,
}

/// What one rank did in one step, as intervals.
#[derive(Default)]
pub(super) struct Activity {
    pub(super) compute: Vec<Interval>,
    pub(super) communication: Vec<Interval>,
    pub(super) waiting: Vec<Interval>,
    window: Option<Interval>,
}

impl Timeline {
    /// Measures every step of every rank, ordered by rank and step.
    ///
    /// Slices on undeclared lanes count for the length of the step alone; see
    /// [`Timeline::validate`].
    pub fn exposures(&self) -> Vec<StepExposure> {
        let mut scratch = Vec::new();
        self.activities()
            .into_iter()
            .map(|((rank, step), activity)| {
                let window = activity.window.unwrap_or_default();
                StepExposure {
                    rank,
                    step,
                    window,
                    exposure: exposure(
                        window,
                        &activity.compute,
                        &activity.communication,
                        &activity.waiting,
                        &mut scratch,
                    ),
                }
            })
            .collect()
    }

    /// The intervals of every rank and step, with the waiting part of collectives set apart.
    pub(super) fn activities(&self) -> BTreeMap<(RankId, u64), Activity> {
        let kinds = self.kinds();
        let arrivals = last_arrivals(&self.slices);
        let mut activities: BTreeMap<_, Activity> = BTreeMap::new();
        for slice in &self.slices {
            let activity = activities.entry((slice.rank, slice.step)).or_default();
            let whole = slice.interval();
            activity.window = hull(activity.window.into_iter().chain([whole]));
            match kinds.get(&(slice.rank, slice.lane)) {
                Some(LaneKind::Compute) => activity.compute.push(whole),
                Some(LaneKind::Communication) => {
                    let meeting = slice.collective.map(|first| (slice.task, slice.step, first));
                    let begun = meeting
                        .and_then(|meeting| arrivals.get(&meeting))
                        .map_or(whole.begin, |&last| last.clamp(whole.begin, whole.end));
                    activity.waiting.push(Interval { begin: whole.begin, end: begun });
                    activity.communication.push(Interval { begin: begun, end: whole.end });
                }
                Some(LaneKind::Quantize) | None => {}
            }
        }
        activities
    }
}

/// The steps of a rank at the beginning of `left`, which is ordered by rank, and takes them from there. Ranks are
/// asked for in order.
pub(super) fn steps_of<'a>(rank: RankId, left: &mut &'a [StepExposure]) -> &'a [StepExposure] {
    let (_, from_rank) = left.split_at(left.partition_point(|step| step.rank < rank));
    let (own, rest) = from_rank.split_at(from_rank.partition_point(|step| step.rank == rank));
    *left = rest;
    own
}

/// When the last rank arrived at each collective, by its task, its step and the lowest rank that takes part:
/// the shards of one replica gather without those of another.
fn last_arrivals(slices: &[Slice]) -> HashMap<(TaskId, u64, RankId), Nanoseconds> {
    let mut arrivals = HashMap::new();
    for slice in slices {
        if let Some(first) = slice.collective {
            let last = arrivals.entry((slice.task, slice.step, first)).or_default();
            *last = slice.begin.max(*last);
        }
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::{lane, slice};
    use super::*;

    fn two_ranks(arrivals: [u64; 2]) -> Timeline {
        let mut timeline = Timeline::default();
        for rank in [0, 1] {
            timeline.lanes.push(lane(rank, 0, "compute", LaneKind::Compute));
            timeline.lanes.push(lane(rank, 1, "communicator", LaneKind::Communication));
            timeline.slices.push(slice([rank, 0, 1], ["forward", "compute"], [0, 40]));
            timeline.slices.push(Slice {
                collective: Some(RankId::new(0)),
                ..slice([rank, 1, 2], ["gather w", "all_gather"], [arrivals[rank as usize], 100])
            });
        }
        timeline
    }

    #[test]
    fn tr2_a_collective_begins_when_its_last_rank_arrives() {
        let measured = two_ranks([50, 80]).exposures();
        assert_eq!(measured.len(), 2);
        let [early, late] = [measured[0].exposure, measured[1].exposure];
        assert_eq!((early.exposed.count(), early.skew.count(), early.idle.count()), (20, 30, 10));
        assert_eq!((late.exposed.count(), late.skew.count(), late.idle.count()), (20, 0, 40));
        assert_eq!(early.communication, late.communication);
    }

    /// Two replicas of one rank each, which gather side by side, and the same as shards of one.
    #[test]
    fn tr2_a_replica_does_not_wait_for_the_gathers_of_another() {
        let mut timeline = two_ranks([50, 80]);
        assert_eq!(timeline.exposures()[0].exposure.skew.count(), 30);
        for slice in timeline.slices.iter_mut().filter(|slice| slice.collective.is_some()) {
            slice.collective = Some(slice.rank);
        }
        let early = timeline.exposures()[0].exposure;
        assert_eq!((early.exposed.count(), early.skew.count()), (50, 0));
    }

    #[test]
    fn waiting_behind_compute_is_no_skew() {
        let measured = two_ranks([10, 30]).exposures();
        assert_eq!(measured[0].exposure.skew, Nanoseconds::ZERO);
        assert_eq!(measured[0].exposure.communication.count(), 70);
        assert_eq!(measured[0].exposure.exposed.count(), 60);
    }

    #[test]
    fn a_copy_between_lanes_of_one_rank_waits_for_nobody() {
        let mut timeline = two_ranks([50, 80]);
        for slice in &mut timeline.slices {
            slice.collective = None;
        }
        let measured = timeline.exposures();
        assert_eq!(measured[0].exposure.exposed.count(), 50);
        assert_eq!(measured[0].exposure.skew, Nanoseconds::ZERO);
    }

    #[test]
    fn steps_are_measured_apart() {
        let mut timeline = two_ranks([50, 50]);
        let mut next = timeline.slices.clone();
        for slice in &mut next {
            slice.step = 1;
            slice.begin = slice.begin.saturating_add(Nanoseconds::new(100));
            slice.end = slice.end.saturating_add(Nanoseconds::new(100));
        }
        timeline.slices.extend(next);
        let measured = timeline.exposures();
        let places: Vec<_> = measured.iter().map(|m| (m.rank.index(), m.step)).collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert!(measured.iter().all(|m| m.exposure == measured[0].exposure));
        assert_eq!(measured[1].window, Interval::new(100, 200));
    }
}
