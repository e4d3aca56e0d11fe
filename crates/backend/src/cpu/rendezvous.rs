//! The meeting of a collective: all ranks of a group arrive, move data, and leave.
//!
//! Laws:
//! - **CO-1** The ranks meet collective after collective. That all of them bring the same one is found out
//!   before any of them comes here ([`super::roll`]); ranks that disagree do not come, and none of them moves
//!   a byte.
//! - Between [`Rendezvous::arrive`] and [`Rendezvous::leave`] every rank's arena holds what it held when that
//!   rank arrived, so peers may read it; no rank gets past `leave` before all are done reading.
//! - A rank that is gone is never waited for: the world is poisoned instead. So no wait hangs.
//! - Nothing here allocates, except to say what went wrong.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::roll::Ticket;
use crate::BackendError;
use crate::bell::{Wake, lock};
use crate::clock::Clock;
use crate::poison::Poison;
use warpweft_base::id::{CommId, RankId};

/// Proof that every rank has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Joined {
    /// When the last one did, on the world's clock.
    pub(super) at: u64,
    meeting: u64,
}

/// The meeting place of a group of ranks of one communicator.
#[derive(Debug)]
pub(super) struct Rendezvous {
    communicator: CommId,
    /// The ranks that meet here, in rank order.
    members: Vec<RankId>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
pub(super) struct State {
    /// Meetings that are over; the number of the current one.
    meeting: u64,
    /// Which ranks are at the current meeting.
    here: Vec<bool>,
    arrived: usize,
    left: usize,
    /// When the last rank arrived.
    joined: u64,
    /// Ranks that will never come again.
    gone: Vec<bool>,
}

impl Rendezvous {
    /// The meeting place of `members`, in rank order, of which some may be gone already.
    pub(super) fn new(communicator: CommId, members: Vec<(RankId, bool)>) -> Self {
        let (members, gone): (Vec<RankId>, Vec<bool>) = members.into_iter().unzip();
        let here = vec![false; gone.len()];
        let state = State { meeting: 0, here, arrived: 0, left: 0, joined: 0, gone };
        Self { communicator, members, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The position of `rank` in the lists of the state.
    fn position(&self, rank: RankId) -> Option<usize> {
        self.members.binary_search(&rank).ok()
    }

    /// Waits until every rank is here; `ticket` is what they bring.
    pub(super) fn arrive(
        &self,
        rank: RankId,
        ticket: Ticket,
        clock: Clock,
        poison: &Poison,
    ) -> Result<Joined, BackendError> {
        let mut state = lock(&self.state);
        let meeting = state.meeting;
        if let Some(place) = self.position(rank).and_then(|own| state.here.get_mut(own)) {
            *place = true;
        }
        state.arrived += 1;
        if state.arrived == state.here.len() {
            state.joined = clock.now();
            self.changed.notify_all();
        }
        while state.arrived < state.here.len() {
            poison.check()?;
            if let Some(missing) = state.missing().and_then(|absent| self.members.get(absent)) {
                drop(state);
                let communicator = self.communicator;
                return Err(poison.set(format!(
                    "{missing} has gone, and {rank} waits for it on {communicator} with {ticket}"
                )));
            }
            state = self.sleep(state);
        }
        Ok(Joined { at: state.joined, meeting })
    }

    /// Waits until the world's clock shows `until`: the paced link is busy until then.
    pub(super) fn pause(&self, until: u64, clock: Clock, poison: &Poison) -> Result<(), BackendError> {
        let mut state = lock(&self.state);
        loop {
            poison.check()?;
            let left = until.saturating_sub(clock.now());
            if left == 0 {
                return Ok(());
            }
            let slept = self.changed.wait_timeout(state, Duration::from_nanos(left));
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until every rank is done with its peers' memory.
    pub(super) fn leave(&self, joined: Joined, poison: &Poison) -> Result<(), BackendError> {
        let mut state = lock(&self.state);
        state.left += 1;
        if state.left == state.here.len() {
            state.meeting += 1;
            state.here.fill(false);
            (state.arrived, state.left) = (0, 0);
            self.changed.notify_all();
        }
        while state.meeting == joined.meeting {
            poison.check()?;
            state = self.sleep(state);
        }
        Ok(())
    }

    /// Notes that `rank` will not come any more.
    pub(super) fn depart(&self, rank: RankId) {
        let Some(own) = self.position(rank) else { return };
        if let Some(gone) = lock(&self.state).gone.get_mut(own) {
            *gone = true;
        }
        self.changed.notify_all();
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The position of a rank that has not arrived and never will.
    fn missing(&self) -> Option<usize> {
        self.here.iter().zip(&self.gone).position(|(here, gone)| *gone && !here)
    }
}

impl Wake for Rendezvous {
    fn wake(&self) {
        // A rank that looked before the poison was set is asleep once the lock is free.
        drop(lock(&self.state));
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_base::id::TaskId;
    use warpweft_plan::layout::Region;

    fn ticket(task: u32) -> Ticket {
        Ticket {
            task: TaskId::new(task),
            op: "all-gather",
            source: Region { offset: 0, bytes: 16 },
            received: 16,
        }
    }

    fn place(communicator: u32, ranks: u32) -> Rendezvous {
        let members = (0..ranks).map(|rank| (RankId::new(rank), false)).collect();
        Rendezvous::new(CommId::new(communicator), members)
    }

    fn meet(
        place: &Rendezvous,
        rank: u32,
        task: u32,
        clock: Clock,
        poison: &Poison,
    ) -> Result<u64, BackendError> {
        let joined = place.arrive(RankId::new(rank), ticket(task), clock, poison)?;
        place.leave(joined, poison)?;
        Ok(joined.at)
    }

    #[test]
    fn every_rank_sees_the_arrival_of_the_last() {
        let (place, clock, poison) = (place(0, 3), Clock::start(), Poison::default());
        let rounds: Vec<Vec<u64>> = std::thread::scope(|scope| {
            let (place, poison) = (&place, &poison);
            let ranks: Vec<_> = (0..3)
                .map(|rank| {
                    scope.spawn(move || {
                        (0..200).map(|task| meet(place, rank, task, clock, poison).unwrap()).collect()
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_eq!(rounds[0], rounds[1]);
        assert_eq!(rounds[0], rounds[2]);
        assert!(rounds[0].is_sorted());
    }

    #[test]
    fn a_rank_that_is_gone_is_not_waited_for() {
        let place = place(0, 2);
        let (clock, poison) = (Clock::start(), Poison::default());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| meet(&place, 0, 1, clock, &poison));
            place.depart(RankId::new(1));
            let message = waiting.join().unwrap().unwrap_err().to_string();
            assert!(message.contains("rank 1 has gone") && message.contains("task 1"), "{message}");
        });
    }

    #[test]
    fn a_rank_that_leaves_after_its_last_collective_disturbs_nobody() {
        let place = place(0, 2);
        let (clock, poison) = (Clock::start(), Poison::default());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meet(&place, 1, 1, clock, &poison));
            meet(&place, 0, 1, clock, &poison).unwrap();
            place.depart(RankId::new(0));
            other.join().unwrap().unwrap();
        });
        assert_eq!(poison.reason(), None);
    }

    #[test]
    fn a_group_meets_without_the_ranks_of_others() {
        let place = Rendezvous::new(CommId::new(0), vec![(RankId::new(1), false), (RankId::new(3), false)]);
        let (clock, poison) = (Clock::start(), Poison::default());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| meet(&place, 3, 1, clock, &poison));
            meet(&place, 1, 1, clock, &poison).unwrap();
            other.join().unwrap().unwrap();
            // A rank of another group is not a member here.
            place.depart(RankId::new(0));
            let waiting = scope.spawn(|| meet(&place, 3, 2, clock, &poison));
            place.depart(RankId::new(1));
            let message = waiting.join().unwrap().unwrap_err().to_string();
            assert!(message.contains("rank 1 has gone, and rank 3 waits"), "{message}");
        });
    }
}
