//! A condition variable for host threads: waits for another thread and wakes the waiters.
//!
//! Laws:
//! - A wait never sleeps through what it waits for: the waker changes the state first and rings second, the
//!   sleeper announces itself first and looks second, with a fence between the two steps on both sides.
//! - Ringing a bell at which no thread waits costs one fence and one load; nothing here allocates.
//! - Every condition that is waited for also checks for poison, so no wait outlives its world.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Looks before a waiter goes to sleep. Ops are long and cores few: a longer spin would take time from the
/// very thread it waits for.
const LOOKS: usize = 64;

/// What a poisoned world wakes, so that it looks again.
pub(super) trait Wake: Send + Sync {
    /// Wakes all that wait here.
    fn wake(&self);
}

/// A place to wait at.
#[derive(Debug, Default)]
pub(super) struct Bell {
    sleepers: AtomicUsize,
    asleep: Mutex<()>,
    rung: Condvar,
}

impl Bell {
    /// Wakes all that wait here. Call it after the state they wait for has changed.
    pub(super) fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            // A sleeper holds the lock from its announcement until it is truly asleep.
            drop(lock(&self.asleep));
            self.rung.notify_all();
        }
    }

    /// Waits until `ready` has an answer.
    pub(super) fn wait_for<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        for _ in 0..LOOKS {
            if let Some(answer) = ready() {
                return answer;
            }
            spin_loop();
        }
        let mut asleep = lock(&self.asleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let answer = loop {
            if let Some(answer) = ready() {
                break answer;
            }
            asleep = self.rung.wait(asleep).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

/// Locks a mutex whose holders never leave the state half-changed, so a panic in one of them spoils nothing.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[test]
    fn two_threads_that_take_turns_never_miss_a_ring() {
        const TURNS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let (turn, bell) = (AtomicU64::new(0), Bell::default());
        let play = |parity: u64| {
            while bell.wait_for(|| match turn.load(Ordering::Acquire) {
                done if done >= TURNS => Some(false),
                mine if mine % 2 == parity => Some(true),
                _ => None,
            }) {
                turn.fetch_add(1, Ordering::Release);
                bell.ring();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| play(0));
            scope.spawn(|| play(1));
        });
        assert!(turn.load(Ordering::Acquire) >= TURNS);
    }
}
