//! Times that a meter charges, of work that takes them for sure.

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
    let dear = Meter { toll: OnceLock::from(Toll { inside: 1 << 40, outside: 1 << 40 }), ..Meter::default() };
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
