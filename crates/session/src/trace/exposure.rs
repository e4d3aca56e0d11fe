//! Exposed communication: how long a rank communicates while its compute lane runs nothing.
//!
//! **TR-1** The instants of a step fall into exactly one of four classes, asked in this order: the
//! compute lane runs (*compute*); else a communication runs (*exposed*); else the rank waits inside
//! a collective for its last rank (*skew*); else *idle*. So the four lengths add up to the step.
//!
//! This file knows intervals only. It needs no timeline, does not allocate beyond the scratch it is
//! given, and may be called after every step with tracing off.

use std::iter::Sum;

use warpweft_base::time::{Interval, Nanoseconds, coalesce, measure};

/// The time of one step of one rank: compute, communication, and the exposed part. Lengths of several steps or ranks
/// may be summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exposure {
    /// The whole step.
    pub step: Nanoseconds,
    /// The compute lane runs.
    pub compute: Nanoseconds,
    /// A communication runs, whether or not the compute lane does.
    pub communication: Nanoseconds,
    /// A communication runs and the compute lane runs nothing.
    pub exposed: Nanoseconds,
    /// The rank waits in a collective for its last rank, and nothing else runs on compute or
    /// communication.
    pub skew: Nanoseconds,
    /// None of the above.
    pub idle: Nanoseconds,
}

impl Exposure {
    /// Exposed communication over step time, from 0 to 1; 0 for an empty step.
    pub fn fraction(&self) -> f64 {
        self.exposed.fraction_of(self.step)
    }

    /// Communication that ran behind compute.
    pub fn hidden(&self) -> Nanoseconds {
        self.communication.saturating_sub(self.exposed)
    }

    /// The hidden part of all communication, from 0 to 1; `None` when nothing was communicated.
    pub fn overlap(&self) -> Option<f64> {
        (self.communication > Nanoseconds::ZERO).then(|| self.hidden().fraction_of(self.communication))
    }
}

impl Sum for Exposure {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), |sum, part| Self {
            step: sum.step.saturating_add(part.step),
            compute: sum.compute.saturating_add(part.compute),
            communication: sum.communication.saturating_add(part.communication),
            exposed: sum.exposed.saturating_add(part.exposed),
            skew: sum.skew.saturating_add(part.skew),
            idle: sum.idle.saturating_add(part.idle),
        })
    }
}

/// Measures one step of one rank.
///
/// `window` is the step. `compute` holds the slices of the compute lane, `communication` those of
/// all communication lanes from the moment on at which all ranks had arrived, `waiting` the time
/// before that (empty slices where nothing waited, or an empty list where arrivals are unknown).
/// The lists may be in any order, may overlap, and may reach out of the window: only what lies
/// inside counts.
///
/// `scratch` is cleared and reused. Where its capacity is at least the three lengths together,
/// nothing is allocated. The cost is that of sorting.
pub fn exposure(
    window: Interval,
    compute: &[Interval],
    communication: &[Interval],
    waiting: &[Interval],
    scratch: &mut Vec<Interval>,
) -> Exposure {
    let mut covered = |list: &[Interval], keep: bool| {
        if !keep {
            scratch.clear();
        }
        scratch.extend(list.iter().map(|interval| interval.clipped(window)));
        coalesce(scratch);
        measure(scratch)
    };
    let communicating = covered(communication, false);
    let computing = covered(compute, false);
    let busy = covered(communication, true);
    let all = covered(waiting, true);
    let step = window.length();
    Exposure {
        step,
        compute: computing,
        communication: communicating,
        exposed: busy.saturating_sub(computing),
        skew: all.saturating_sub(busy),
        idle: step.saturating_sub(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRID: u64 = 48;

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        prop::collection::vec((0..GRID, 0..GRID).prop_map(|(a, b)| Interval::new(a, b)), 0..10)
    }

    /// The definition, instant by instant.
    fn by_counting(window: Interval, lists: [&[Interval]; 3]) -> Exposure {
        let mut sum = Exposure::default();
        let one = |length: &mut Nanoseconds| *length = length.saturating_add(Nanoseconds::new(1));
        for at in window.begin.count()..window.end.count() {
            let at = Nanoseconds::new(at);
            let [compute, communication, waiting] =
                lists.map(|list| list.iter().any(|i| i.begin <= at && at < i.end));
            one(&mut sum.step);
            if communication {
                one(&mut sum.communication);
            }
            one(match (compute, communication, waiting) {
                (true, _, _) => &mut sum.compute,
                (false, true, _) => &mut sum.exposed,
                (false, false, true) => &mut sum.skew,
                (false, false, false) => &mut sum.idle,
            });
        }
        sum
    }

    proptest! {
        #[test]
        fn tr1_interval_arithmetic_agrees_with_counting_instants(
            a in 0..GRID, b in 0..GRID,
            compute in intervals(), communication in intervals(), waiting in intervals(),
        ) {
            let window = Interval::new(a.min(b), a.max(b));
            let mut scratch = Vec::new();
            let measured = exposure(window, &compute, &communication, &waiting, &mut scratch);
            prop_assert_eq!(measured, by_counting(window, [&compute, &communication, &waiting]));
            prop_assert!((0.0..=1.0).contains(&measured.fraction()));
            if let Some(overlap) = measured.overlap() {
                prop_assert!((0.0..=1.0).contains(&overlap));
            }
        }

        #[test]
        fn a_scratch_of_the_three_lengths_never_grows(
            compute in intervals(), communication in intervals(), waiting in intervals(),
        ) {
            let most = compute.len() + communication.len() + waiting.len();
            let mut scratch = Vec::with_capacity(most);
            let before = (scratch.as_ptr(), scratch.capacity());
            exposure(Interval::new(0, GRID), &compute, &communication, &waiting, &mut scratch);
            prop_assert_eq!((scratch.as_ptr(), scratch.capacity()), before);
        }
    }

    #[test]
    fn a_gather_half_behind_compute_is_half_exposed() {
        let measured = exposure(
            Interval::new(0, 100),
            &[Interval::new(10, 60)],
            &[Interval::new(40, 80)],
            &[Interval::new(30, 40), Interval::new(85, 90)],
            &mut Vec::new(),
        );
        assert_eq!(measured.exposed.count(), 20);
        assert_eq!(measured.hidden().count(), 20);
        assert_eq!(measured.skew.count(), 5);
        assert_eq!(measured.idle.count(), 25);
        assert_eq!(measured.fraction(), 0.2);
        assert_eq!(measured.overlap(), Some(0.5));
    }

    #[test]
    fn an_empty_step_has_no_exposure_and_no_overlap() {
        let list = [Interval::new(0, 9)];
        let measured = exposure(Interval::new(5, 5), &list, &list, &list, &mut Vec::new());
        assert_eq!(measured, Exposure::default());
        assert_eq!(measured.fraction(), 0.0);
        assert_eq!(measured.overlap(), None);
    }
}
