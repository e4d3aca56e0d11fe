//! Host time of issuing: what a rank's thread spends while it puts a step on its lanes.
//!
//! Laws:
//! - **HT-1** While a meter is on, every nanosecond between two laps is charged to exactly one [`Activity`]:
//!   entering one leaves the one before it, and its end returns there. So parts add up to the whole, however
//!   they are nested. What the meter itself takes is a part of its own. Entering is timed when the meter is
//!   first on; for every time an activity was entered or left, that is taken off it, but never more than it
//!   has. To enter the activity under way changes nothing, so calls that follow each other closely are timed as
//!   one by whoever enters the driver around them.
//! - A meter belongs to one rank and is reached through what that rank's thread already has in hand: its
//!   streams, the handles of its closures. One thread writes it, the rank's; its words are atomics only
//!   because backends must be `Send`. It locks and allocates nothing.
//! - A meter that is off costs a load and a branch for each call. One that is on reads the clock twice for
//!   each change of activity, about 50 ns together. Beside a launch of 2 µs that is noticeable, so it is on
//!   only in steps that requested it. What it takes is the least of several trials with nothing inside. In a
//!   step, with other things in the caches, it is rather more, and the rest stays with the activities.

use std::ops::AddAssign;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What a rank's thread is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// Code of this library: messages, rights, issuing, assembling reports.
    Own,
    /// A call of the driver or of a library beside it: CUDA, NCCL, cuBLASLt. Also those that
    /// [`warpweft_plan::compute`] closures make through this library.
    Driver,
    /// A user's closure, without the calls just named.
    Closure,
    /// Waiting for lanes, for copies, and for other ranks.
    Waiting,
}

impl Activity {
    /// The number of activities; as numbers they are in the order of their declaration.
    const COUNT: usize = 4;
}

/// What a stretch of a rank's time on the host was spent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostSplit {
    /// Code of this library.
    pub own: Duration,
    /// Inside the driver and the libraries beside it: CUDA, NCCL, cuBLASLt. What a closure calls by itself,
    /// past this library, is charged to the closure.
    pub driver: Duration,
    /// In closures, without what is charged to [`HostSplit::driver`]. Closures that run on a lane of their
    /// own are not included.
    pub closures: Duration,
    /// Waiting for lanes, for copies and for other ranks.
    pub waiting: Duration,
    /// What splitting the time itself took; a step that is not split takes none of it.
    pub metering: Duration,
    /// Calls of the driver and of libraries; a group of NCCL transfers counts as one.
    pub calls: u64,
}

impl HostSplit {
    /// All of it except waiting and metering.
    #[must_use]
    pub fn busy(&self) -> Duration {
        self.own + self.driver + self.closures
    }

    /// All parts.
    #[must_use]
    pub fn whole(&self) -> Duration {
        self.busy() + self.waiting + self.metering
    }
}

impl AddAssign for HostSplit {
    fn add_assign(&mut self, other: Self) {
        self.own += other.own;
        self.driver += other.driver;
        self.closures += other.closures;
        self.waiting += other.waiting;
        self.metering += other.metering;
        self.calls += other.calls;
    }
}

/// Charges the time of one rank's thread to what it is doing.
#[derive(Debug)]
pub struct Meter {
    origin: Instant,
    is_on: AtomicBool,
    /// The activity under way, as its number.
    current: AtomicUsize,
    /// Nanoseconds from `origin` to the last change.
    since: AtomicU64,
    /// One for each activity, since the last lap.
    accounts: [Account; Activity::COUNT],
    calls: AtomicU64,
    toll: OnceLock<Toll>,
}

/// What one activity was charged.
#[derive(Debug, Default)]
struct Account {
    /// Nanoseconds.
    spent: AtomicU64,
    /// How often it was entered, and hence left at its end.
    entered: AtomicU64,
    /// How often another was entered from it.
    interrupted: AtomicU64,
}

/// What it takes to enter an activity and come back, in picoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Toll {
    /// The part charged to the activity itself.
    inside: u64,
    /// The part charged to the activity around it.
    outside: u64,
}

impl Default for Meter {
    fn default() -> Self {
        Self {
            origin: Instant::now(),
            is_on: AtomicBool::new(false),
            current: AtomicUsize::new(Activity::Own as usize),
            since: AtomicU64::new(0),
            accounts: Default::default(),
            calls: AtomicU64::new(0),
            toll: OnceLock::new(),
        }
    }
}

impl Meter {
    /// Starts from nothing, with this library's own code; `is_on` says whether anything is charged from now
    /// on. When it is first on, the meter times itself, which takes some tens of microseconds.
    pub fn begin(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
        self.current.store(Activity::Own as usize, Ordering::Relaxed);
        if is_on {
            self.toll.get_or_init(|| self.time_itself());
            let _ = self.take();
        }
    }

    /// What was charged since the last lap, or since the meter was begun; all zero while it is off.
    pub fn lap(&self) -> HostSplit {
        if !self.is_on.load(Ordering::Relaxed) {
            return HostSplit::default();
        }
        let toll = self.toll.get().copied().unwrap_or_default();
        let (accounts, calls) = self.take();
        let mut metering = 0;
        let [own, driver, closures, waiting] = accounts.map(|(spent, entered, interrupted)| {
            let itself = (entered * toll.inside + interrupted * toll.outside) / 1000;
            let itself = itself.min(spent);
            metering += itself;
            Duration::from_nanos(spent - itself)
        });
        HostSplit { own, driver, closures, waiting, metering: Duration::from_nanos(metering), calls }
    }

    /// Every account (spent, entered, interrupted) and the calls since the last call of this function.
    fn take(&self) -> ([(u64, u64, u64); Activity::COUNT], u64) {
        self.charge();
        let take = |word: &AtomicU64| {
            let value = word.load(Ordering::Relaxed);
            word.store(0, Ordering::Relaxed);
            value
        };
        let accounts = self.accounts.each_ref();
        let accounts = accounts.map(|one| (take(&one.spent), take(&one.entered), take(&one.interrupted)));
        (accounts, take(&self.calls))
    }

    /// The least of several trials: a trial during which the thread was held up says nothing.
    fn time_itself(&self) -> Toll {
        const TRIALS: usize = 8;
        const TIMES: u64 = 128;
        let trial = |_| {
            let _ = self.take();
            for _ in 0..TIMES {
                self.driver(|| std::hint::black_box(()));
            }
            let (accounts, _) = self.take();
            let of = |activity: Activity| accounts[activity as usize].0 * 1000 / TIMES;
            Toll { inside: of(Activity::Driver), outside: of(Activity::Own) }
        };
        (0..TRIALS).map(trial).min_by_key(|toll| toll.inside + toll.outside).unwrap_or_default()
    }

    /// Does `call`, one call of the driver or of a library beside it. It is counted and charged while the
    /// meter is on.
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
        if !self.is_on.load(Ordering::Relaxed) || self.current.load(Ordering::Relaxed) == activity as usize {
            return work();
        }
        // Also left on a panic, which a caller further up catches.
        let _entered = self.enter(activity);
        work()
    }

    fn enter(&self, activity: Activity) -> Entered<'_> {
        self.charge();
        let before = self.current.load(Ordering::Relaxed);
        self.current.store(activity as usize, Ordering::Relaxed);
        if let Some(account) = self.accounts.get(before) {
            add(&account.interrupted, 1);
        }
        add(&self.accounts[activity as usize].entered, 1);
        Entered { meter: self, before }
    }

    /// Charges what has passed to the activity under way.
    fn charge(&self) {
        let now = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let passed = now.saturating_sub(self.since.load(Ordering::Relaxed));
        self.since.store(now, Ordering::Relaxed);
        if let Some(account) = self.accounts.get(self.current.load(Ordering::Relaxed)) {
            add(&account.spent, passed);
        }
    }
}

/// Only one thread writes, so this need not be one operation.
fn add(word: &AtomicU64, amount: u64) {
    word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Goes back to the previous activity.
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

    /// Keeps the thread busy for at least that long.
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
        let parts = split.whole();
        assert!(parts <= whole, "{parts:?} of {whole:?}");
        // What is left over lies before `begin` and after `lap`, which are a few instructions unless the
        // thread is preempted there. What is taken off may be a nanosecond more than it took.
        let parts = [(split.own, 1), (split.driver, 4), (split.closures, 2), (split.waiting, 2)];
        assert!(parts.iter().all(|(part, times)| *part + split.metering >= *times * SHORT), "{split:?}");
        assert_eq!(split.calls, 1);
        assert_eq!(split.busy(), split.own + split.driver + split.closures);
        assert_eq!(split.whole(), split.busy() + split.waiting + split.metering);
    }

    #[test]
    fn ht_1_a_meter_finds_what_it_takes() {
        const CALLS: u64 = 100;
        let meter = Meter::default();
        // The best of many short rounds: the thread is held up in some of them.
        let round = || {
            meter.begin(true);
            let begun = Instant::now();
            for _ in 0..CALLS {
                meter.driver(|| std::hint::black_box(()));
            }
            let split = meter.lap();
            assert_eq!(split.calls, CALLS);
            // Nothing else was done here, so nearly all of it is the meter's.
            split.metering.as_secs_f64() / begun.elapsed().as_secs_f64()
        };
        assert!((0..10_000).any(|_| (0.6..=1.0).contains(&round())));
    }

    #[test]
    fn ht_1_what_the_meter_takes_is_taken_off_whoever_was_charged_for_it() {
        // 100 and 10 ns.
        let toll = OnceLock::from(Toll { inside: 100_000, outside: 10_000 });
        let meter = Meter { toll, ..Meter::default() };
        meter.begin(true);
        meter.within(Activity::Closure, || {
            work(SHORT);
            for _ in 0..3 {
                meter.driver(|| work(SHORT));
            }
        });
        work(SHORT);
        let account = |activity: Activity| {
            let account = &meter.accounts[activity as usize];
            let counts = [&account.entered, &account.interrupted];
            counts.map(|count| count.load(Ordering::Relaxed))
        };
        assert_eq!(account(Activity::Closure), [1, 3]);
        assert_eq!((account(Activity::Driver), account(Activity::Own)), ([3, 0], [0, 1]));
        let spent = [Activity::Closure, Activity::Driver]
            .map(|activity| meter.accounts[activity as usize].spent.load(Ordering::Relaxed));
        let split = meter.lap();
        assert_eq!(split.metering, Duration::from_nanos(100 + 30 + 300 + 10));
        assert_eq!(split.closures + split.driver, Duration::from_nanos(spent[0] + spent[1] - 430));
        assert!(split.own + Duration::from_nanos(10) >= SHORT, "{split:?}");
    }

    #[test]
    fn ht_1_calls_within_the_driver_are_counted_one_by_one_and_timed_as_one() {
        let meter = Meter::default();
        meter.begin(true);
        meter.within(Activity::Driver, || (0..3).for_each(|_| meter.driver(|| work(SHORT))));
        let driver = &meter.accounts[Activity::Driver as usize];
        assert_eq!([&driver.entered, &driver.interrupted].map(|count| count.load(Ordering::Relaxed)), [1, 0]);
        let split = meter.lap();
        assert_eq!(split.calls, 3);
        assert!(split.driver + split.metering >= 3 * SHORT, "{split:?}");
    }

    #[test]
    fn ht_1_no_more_is_taken_off_an_activity_than_it_has() {
        let dear =
            Meter { toll: OnceLock::from(Toll { inside: 1 << 40, outside: 1 << 40 }), ..Meter::default() };
        let begun = Instant::now();
        dear.begin(true);
        dear.driver(|| work(SHORT));
        let split = dear.lap();
        assert_eq!((split.driver, split.own), (Duration::ZERO, Duration::ZERO));
        assert!(split.metering >= SHORT && split.metering <= begun.elapsed(), "{split:?}");
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
        assert!(second.own + second.metering >= SHORT && second.own <= begun.elapsed(), "{second:?}");
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
        assert!(split.own + split.metering >= SHORT && split.closures == Duration::ZERO, "{split:?}");
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
