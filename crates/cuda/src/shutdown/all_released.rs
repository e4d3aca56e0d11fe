//! A barrier with a time limit: ranks of a process that have released what their devices wait for.
//!
//! Law: **RL-2** Ranks wait here for each other before any of them aborts, and not for ever (see [`super::release`]).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::bounded_wait::wait_until;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// How many ranks of this process need no call of the host any more for their devices to run on, but for
/// aborting.
#[derive(Debug, Default)]
pub(crate) struct Released(AtomicUsize);

impl Released {
    pub(crate) fn come(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until `all` ranks have come, and says whether they did in time.
    pub(crate) fn wait_for(&self, all: usize, patience: Duration) -> bool {
        wait_until(patience, PAUSE, || self.0.load(Ordering::SeqCst) >= all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rl2_ranks_of_a_process_wait_until_all_have_come() {
        let released = Released::default();
        let come = || {
            released.come();
            released.wait_for(3, Duration::from_secs(60))
        };
        let all: Vec<bool> = std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3).map(|_| scope.spawn(come)).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap_or(false)).collect()
        });
        assert_eq!(all, [true; 3]);
    }

    #[test]
    fn rl2_a_rank_that_does_not_come_is_not_waited_for_for_ever() {
        let released = Released::default();
        released.come();
        assert!(!released.wait_for(2, Duration::from_millis(1)));
        assert!(released.wait_for(1, Duration::ZERO));
    }
}
