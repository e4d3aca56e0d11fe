//! A barrier of the ranks of a process, for reading CUPTI activities once for all.
//!
//! Law: the work of a meeting is done once, by the last rank to come, when every rank is there; so all lanes
//! of all of them are over. No rank waits for a rank of a world that has ended, nor past the deadline, nor
//! for the work. The work is done without the lock, and a rank that gives up meanwhile has been counted for
//! this meeting and not for the next.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use warpweft_backend::bell::lock;

/// How often a waiting rank asks whether the world has ended.
const PAUSE: Duration = Duration::from_millis(5);

/// A meeting of the ranks of one process.
#[derive(Debug)]
pub(super) struct Meeting<T> {
    ranks: usize,
    state: Mutex<State<T>>,
    over: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// Ranks that are there for the next meeting.
    there: usize,
    /// Meetings for which all were there.
    begun: u64,
    /// Meetings whose work is done.
    held: u64,
    /// The result of the last one.
    last: Option<Arc<T>>,
}

impl<T> Meeting<T> {
    /// A meeting of `ranks` ranks.
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            ranks,
            state: Mutex::new(State { there: 0, begun: 0, held: 0, last: None }),
            over: Condvar::new(),
        }
    }

    /// Waits for the other ranks; the last does `work`, whose result all get. `None` if `ended` says so
    /// first, or the deadline passes.
    pub(super) fn meet(
        &self,
        deadline: Duration,
        ended: impl Fn() -> bool,
        work: impl FnOnce() -> T,
    ) -> Option<Arc<T>> {
        let begun = Instant::now();
        let mut state = lock(&self.state);
        state.there += 1;
        let meeting = state.begun;
        if state.there >= self.ranks {
            state.there = 0;
            state.begun += 1;
            drop(state);
            let done = Arc::new(work());
            let mut state = lock(&self.state);
            state.held = meeting + 1;
            state.last = Some(Arc::clone(&done));
            self.over.notify_all();
            return Some(done);
        }
        while state.held <= meeting {
            if ended() || begun.elapsed() >= deadline {
                if state.begun == meeting {
                    state.there = state.there.saturating_sub(1);
                }
                return None;
            }
            state = self.over.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
        }
        // The next meeting needs this rank too, so this is still the last one.
        state.last.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_work_is_done_once_when_all_are_there_and_all_get_what_came_of_it() {
        const RANKS: usize = 4;
        let (meeting, works, came) = (Meeting::new(RANKS), AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..RANKS {
                scope.spawn(|| {
                    for round in 1..=50 {
                        came.fetch_add(1, Ordering::SeqCst);
                        let work = || {
                            assert_eq!(came.load(Ordering::SeqCst) as usize, RANKS * round);
                            works.fetch_add(1, Ordering::SeqCst) + 1
                        };
                        let got = meeting.meet(LONG, || false, work).unwrap();
                        assert_eq!(*got as usize, round);
                    }
                });
            }
        });
        assert_eq!(works.load(Ordering::SeqCst), 50);
    }

    #[test]
    fn nobody_waits_in_a_world_that_has_ended_nor_past_the_deadline() {
        let meeting = Meeting::new(2);
        assert_eq!(meeting.meet(LONG, || true, || ()), None);
        assert_eq!(meeting.meet(Duration::MAX, || true, || ()), None, "it lies beyond the clock");
        assert_eq!(meeting.meet(Duration::from_millis(1), || false, || ()), None);
        // A rank that gave up is not counted: two must come for the next.
        assert_eq!(meeting.meet(Duration::from_millis(1), || false, || ()), None);
    }

    #[test]
    fn who_gives_up_while_the_work_is_done_does_not_wait_for_it_and_is_not_missed_by_the_next_meeting() {
        let (meeting, gave_up) = (Meeting::new(2), AtomicU32::new(0));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let got = meeting.meet(LONG, || gave_up.load(Ordering::SeqCst) == 1, || 0);
                gave_up.store(2, Ordering::SeqCst);
                got
            });
            while lock(&meeting.state).there == 0 {
                thread::yield_now();
            }
            let worked = meeting.meet(
                LONG,
                || false,
                || {
                    gave_up.store(1, Ordering::SeqCst);
                    while gave_up.load(Ordering::SeqCst) != 2 {
                        thread::yield_now();
                    }
                    7
                },
            );
            assert_eq!((waiter.join().unwrap(), worked.as_deref()), (None, Some(&7)));
        });
        // One alone is not two.
        assert_eq!(meeting.meet(Duration::from_millis(1), || false, || 8), None);
        thread::scope(|scope| {
            let other = scope.spawn(|| meeting.meet(LONG, || false, || 9));
            assert_eq!(meeting.meet(LONG, || false, || 9).as_deref(), Some(&9));
            assert_eq!(other.join().unwrap().as_deref(), Some(&9));
        });
    }
}
