//! What a rank's thread spends its time on while it puts a step on its lanes.
//!
//! Laws:
//! - **HT-1** while a meter is on, every nanosecond between two laps is charged to exactly one [`Activity`]: whoever enters one leaves the one
//!   before it, and comes back to it at the end. So parts add up to the whole, whatever is nested in what.
//! - A meter belongs to one rank and is reached through what that rank's thread already has in hand: its streams, the handles of its
//!   closures. One thread writes it, the rank's; its words are atomics only because backends must be `Send`. It locks and allocates nothing.
//! - A meter that is off costs a load and a branch for each call. One that is on reads the clock twice for each change of activity, about
//!   50 ns together, half of which is charged to either side. Beside a launch of 2 µs that is seen, so it is on only in steps that asked for it.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a rank's thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Code of this library: messages, rights, issuing, assembling reports.
    Own,
    /// A call of the driver or of a library beside it: CUDA, NCCL, cuBLASLt. Also those that [`crate::compute`] closures make
    /// through this library.
    Driver,
    /// An embedder's closure, without the calls just named.
    Closure,
    /// For lanes, for copies, and for other ranks.
    Waiting,
}

impl Activity {
    /// How many there are.
    const COUNT: usize = 4;
    const ALL: [Self; Self::COUNT] = [Self::Own, Self::Driver, Self::Closure, Self::Waiting];
}

/// What a stretch of a rank's time on the host went to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSplit {
    /// Code of this library.
    pub own: Duration,
    /// Inside of the driver and the libraries beside it: CUDA, NCCL, cuBLASLt. What a closure calls by itself, past this library, is
    /// the closure's.
    pub driver: Duration,
    /// In closures, without what is [`HostSplit::driver`]'s. Closures that run on a lane of their own are not in it.
    pub closures: Duration,
    /// Waiting for lanes, for copies and for other ranks.
    pub waiting: Duration,
    /// Calls of the driver and of libraries; a group of NCCL transfers counts as one.
    pub calls: u64,
}

impl HostSplit {
    /// All of it but waiting.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.own + self.driver + self.closures
    }
}

impl AddAssign for HostSplit {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.driver += other.driver;
        self.closures += other.closures;
        self.waiting += other.waiting;
        self.calls += other.calls;
    }
}

/// Charges the time of one rank's thread to what it is at.
#[derive(Debug)]
pub struct Meter {
    origin: Instant,
    is_on: AtomicBool,
    /// The activity under way, as its place in [`Activity::ALL`].
    current: AtomicUsize,
    /// Nanoseconds from `origin` to the last change.
    since: AtomicU64,
    /// Nanoseconds of every activity since the last lap.
    spent: [AtomicU64; Activity::COUNT],
    calls: AtomicU64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            is_on: AtomicBool::new(false),
            current: AtomicUsize::new(Activity::Own as usize),
            since: AtomicU64::new(0),
            spent: Default::default(),
            calls: AtomicU64::new(0),
        }
    }
}

impl Meter {
    /// Starts from nothing, with this library's own code; `is_on` says whether anything is charged from now on.
    pub fn begin(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        self.current.store(Activity::Own as usize, Ordering::Relaxed);
        if is_on {
            let _ = self.lap();
        }
    }

    /// What was charged since the last lap, or since the meter was begun; all zero while it is off.
    pub fn lap(&self) -> HostSplit {
        if !self.is_on.load(Ordering::Relaxed) {
            return HostSplit::default();
        }
        self.charge();
        let take = |word: &AtomicU64| {
            let value = word.load(Ordering::Relaxed);
            word.store(0, Ordering::Relaxed);
            value
        };
        let [own, driver, closures, waiting] =
            Activity::ALL.map(|activity| Duration::from_nanos(take(&self.spent[activity as usize])));
        HostSplit { own, driver, closures, waiting, calls: take(&self.calls) }
    }

    /// Does `call`, one call of the driver or of a library beside it, which is counted and charged while the meter is on.
    #[inline]
    pub fn driver<T>(&self, call: impl FnOnce() -> T) -> T {
        if !self.is_on.load(Ordering::Relaxed) {
            return call();
        }
        add(&self.calls, 1);
        self.within(Activity::Driver, call)
    }

    /// Does `work`, whose time is charged to `activity` while the meter is on.
    #[inline]
    pub fn within<T>(&self, activity: Activity, work: impl FnOnce() -> T) -> T {
        if !self.is_on.load(Ordering::Relaxed) {
            return work();
        }
        // Left behind also by a panic, which is somebody's to catch further up.
        let _entered = self.enter(activity);
        work()
    }

    fn enter(&self, activity: Activity) -> Entered<'_> {
        self.charge();
        let before = self.current.load(Ordering::Relaxed);
        self.current.store(activity as usize, Ordering::Relaxed);
        Entered { meter: self, before }
    }

    /// Charges what has passed to the activity under way.
    fn charge(&self) {
        let now = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let passed = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.since.store(now, Ordering::Relaxed);
        if let Some(spent) = self.spent.get(self.current.load(Ordering::Relaxed)) {
            add(spent, passed);
        }
    }
}

/// One thread writes, so this need not be one operation.
fn add(word: &AtomicU64, amount: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Goes back to the activity before.
struct Entered<'a> {
    meter: &'a Meter,
    before: usize,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.meter.charge();
        self.meter.current.store(self.before, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    /// Keeps the thread busy for at least so long.
    fn work(time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            std::hint::spin_loop();
        }
    }

    const SHORT: Duration = Duration::from_micros(300);

    #[test]
    fn ht_1_parts_add_up_to_the_whole_and_nested_ones_are_not_counted_twice() {
        let meter = Meter::default();
        let begun = Instant::now();
        meter.begin(true);
        work(SHORT);
        meter.within(Activity::Closure, || {
            work(SHORT);
            meter.driver(|| work(4 * SHORT));
            work(SHORT);
        });
        meter.within(Activity::Waiting, || work(2 * SHORT));
        let split = meter.lap();
        let whole = begun.elapsed();
        let parts = split.busy() + split.waiting;
        assert!(parts <= whole, "{parts:?} of {whole:?}");
        // What is left over lies before `begin` and behind `lap`, which are a few instructions unless the thread is preempted there.
        assert!(split.own >= SHORT && split.driver >= 4 * SHORT, "{split:?}");
        assert!(split.closures >= 2 * SHORT && split.waiting >= 2 * SHORT, "{split:?}");
        assert_eq!(split.calls, 1);
        assert_eq!(split.busy(), split.own + split.driver + split.closures);
    }

    #[test]
    fn ht_1_a_lap_begins_where_the_last_one_ended() {
        let meter = Meter::default();
        meter.begin(true);
        meter.driver(|| work(SHORT));
        let (begun, first) = (Instant::now(), meter.lap());
        assert_eq!(first.calls, 1);
        work(SHORT);
        let second = meter.lap();
        assert_eq!((second.driver, second.closures, second.calls), (Duration::ZERO, Duration::ZERO, 0));
        assert!(second.own >= SHORT && second.own <= begun.elapsed(), "{second:?}");
        let mut sum = first;
        sum += second;
        assert_eq!((sum.own, sum.calls), (first.own + second.own, 1));
    }

    #[test]
    fn a_panic_leaves_the_activity_it_was_in() {
        let meter = Meter::default();
        meter.begin(true);
        let panicking = || meter.within(Activity::Closure, || std::panic::resume_unwind(Box::new(())));
        assert!(catch_unwind(AssertUnwindSafe(panicking)).is_err());
        let _ = meter.lap();
        work(SHORT);
        let split = meter.lap();
        assert!(split.own >= SHORT && split.closures == Duration::ZERO, "{split:?}");
    }

    #[test]
    fn a_meter_that_is_off_charges_nothing_and_does_the_work_all_the_same() {
        let meter = Meter::default();
        assert_eq!(meter.driver(|| 7) + meter.within(Activity::Waiting, || 1), 8);
        assert_eq!(meter.lap(), HostSplit::default());
        meter.begin(true);
        meter.driver(|| work(SHORT));
        meter.begin(false);
        meter.driver(|| work(SHORT));
        assert_eq!(meter.lap(), HostSplit::default());
        meter.begin(true);
        assert_eq!(meter.lap().calls, 0, "what was charged before it was begun is forgotten");
    }
}
