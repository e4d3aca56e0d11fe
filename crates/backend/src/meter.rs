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
mod tests;
