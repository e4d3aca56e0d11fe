//! Nanoseconds since an origin, and half-open intervals of them.
//!
//! An interval `[begin, end)` whose end is not after its begin is empty, never an error: clocks of
//! two threads may disagree by a nanosecond and a measurement must not fail over that. A list is
//! *coalesced* when it is sorted, holds no empty interval, and no two of its intervals touch; every
//! function here says which lists must be.

use std::fmt;
use std::time::{Duration, Instant};

/// A time since the origin of a recording, or a length of time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanoseconds(u64);

impl Nanoseconds {
    /// The origin itself; no time at all.
    pub const ZERO: Self = Self(0);

    /// So many nanoseconds.
    pub const fn new(count: u64) -> Self {
        Self(count)
    }

    /// The time from `origin` to `at`; zero when `at` is the earlier one.
    pub fn since(origin: Instant, at: Instant) -> Self {
        at.saturating_duration_since(origin).into()
    }

    /// How many nanoseconds.
    pub const fn count(self) -> u64 {
        self.0
    }

    /// In microseconds, the unit of chrome traces. Exact to the nanosecond below 2^52 ns, about 52
    /// days.
    pub fn microseconds(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// In milliseconds, the unit of pictures.
    pub fn milliseconds(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The sum, or the largest time when it does not fit.
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, or zero when `other` is larger.
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// `self / whole` as a fraction; zero when `whole` is zero.
    pub fn fraction_of(self, whole: Self) -> f64 {
        if whole.0 == 0 { 0.0 } else { self.0 as f64 / whole.0 as f64 }
    }
}

impl From<Duration> for Nanoseconds {
    /// Durations past the range of `u64`, 584 years, become its maximum.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Nanoseconds {
    /// In the largest unit that keeps a digit before the point: `640 ns`, `12.3 µs`, `4.56 ms`,
    /// `1.2 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            0..1_000 => format!("{} ns", self.0),
            1_000..1_000_000 => format!("{:.1} µs", self.0 as f64 / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} ms", self.0 as f64 / 1e6),
            _ => format!("{:.2} s", self.0 as f64 / 1e9),
        };
        f.pad(&text)
    }
}

/// The times `begin <= t < end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interval {
    /// The first instant inside.
    pub begin: Nanoseconds,
    /// The first instant after.
    pub end: Nanoseconds,
}

impl Interval {
    /// The interval from `begin` to `end`, in nanoseconds since the origin.
    pub const fn new(begin: u64, end: u64) -> Self {
        Self { begin: Nanoseconds::new(begin), end: Nanoseconds::new(end) }
    }

    /// Its length; zero when empty.
    pub const fn length(self) -> Nanoseconds {
        self.end.saturating_sub(self.begin)
    }

    /// Whether no instant lies inside.
    pub fn is_empty(self) -> bool {
        self.end <= self.begin
    }

    /// The part inside `window`; empty when there is none.
    pub fn clipped(self, window: Self) -> Self {
        Self { begin: self.begin.max(window.begin), end: self.end.min(window.end) }
    }
}

/// Coalesces a list in place, so that its length only shrinks. Does not allocate.
pub fn coalesce(list: &mut Vec<Interval>) {
    list.retain(|interval| !interval.is_empty());
    list.sort_unstable();
    list.dedup_by(|next, kept| {
        let touches = next.begin <= kept.end;
        if touches {
            kept.end = kept.end.max(next.end);
        }
        touches
    });
}

/// The total length of a coalesced list.
pub fn measure(coalesced: &[Interval]) -> Nanoseconds {
    coalesced.iter().fold(Nanoseconds::ZERO, |sum, interval| sum.saturating_add(interval.length()))
}

/// The parts of `from` that no interval of `holes` covers, coalesced. Both lists must be coalesced.
pub fn subtract(from: &[Interval], holes: &[Interval]) -> Vec<Interval> {
    let mut parts = Vec::new();
    let mut first_hole = 0;
    for &whole in from {
        while first_hole < holes.len() && holes[first_hole].end <= whole.begin {
            first_hole += 1;
        }
        let mut begin = whole.begin;
        for hole in &holes[first_hole..] {
            if hole.begin >= whole.end {
                break;
            }
            if hole.begin > begin {
                parts.push(Interval { begin, end: hole.begin });
            }
            begin = begin.max(hole.end);
        }
        if begin < whole.end {
            parts.push(Interval { begin, end: whole.end });
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn intervals() -> impl Strategy<Value = Vec<Interval>> {
        prop::collection::vec((0u64..40, 0u64..40).prop_map(|(a, b)| Interval::new(a, b)), 0..12)
    }

    fn covers(list: &[Interval], at: u64) -> bool {
        let at = Nanoseconds::new(at);
        list.iter().any(|i| i.begin <= at && at < i.end)
    }

    proptest! {
        #[test]
        fn coalescing_keeps_every_covered_instant_and_no_other(list in intervals()) {
            let mut merged = list.clone();
            coalesce(&mut merged);
            for at in 0..41 {
                prop_assert_eq!(covers(&list, at), covers(&merged, at));
            }
            prop_assert!(merged.iter().all(|i| !i.is_empty()));
            prop_assert!(merged.windows(2).all(|pair| pair[0].end < pair[1].begin));
            let covered = (0..41).filter(|&at| covers(&list, at)).count() as u64;
            prop_assert_eq!(measure(&merged).count(), covered);
        }

        #[test]
        fn subtracting_leaves_exactly_what_the_holes_do_not_cover(
            a in intervals(),
            b in intervals(),
        ) {
            let (mut from, mut holes) = (a.clone(), b.clone());
            coalesce(&mut from);
            coalesce(&mut holes);
            let parts = subtract(&from, &holes);
            for at in 0..41 {
                prop_assert_eq!(covers(&parts, at), covers(&a, at) && !covers(&b, at));
            }
            prop_assert!(parts.windows(2).all(|pair| pair[0].end < pair[1].begin));
        }
    }

    #[test]
    fn times_print_in_a_unit_a_person_reads() {
        let shown = [640, 12_340, 4_560_000, 1_234_000_000].map(|n| Nanoseconds::new(n).to_string());
        assert_eq!(shown, ["640 ns", "12.3 µs", "4.56 ms", "1.23 s"]);
    }

    #[test]
    fn an_instant_before_the_origin_is_at_the_origin() {
        let early = Instant::now();
        let late = early + Duration::from_nanos(7);
        assert_eq!(Nanoseconds::since(early, late).count(), 7);
        assert_eq!(Nanoseconds::since(late, early), Nanoseconds::ZERO);
    }
}
