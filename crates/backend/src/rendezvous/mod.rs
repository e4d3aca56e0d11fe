//! The rendezvous of the ranks of a world on the host: they find each other and agree.
//!
//! Laws:
//! - **RV-1** what ranks of one process and ranks of many processes do is the same: every rank contributes
//!   bytes to a topic and gets everybody's, in rank order. Only this module knows which ranks are elsewhere.
//! - **RV-2** nobody waits past the deadline, however slowly bytes come, and an error names who is missing,
//!   or what ended the world. While a world begins, a process that was let in waits for the deadline of the
//!   process of rank 0, which may have begun later than it. Within a process, the deadline for a rank that is
//!   busy begins when it no longer is.
//! - **RV-3** the first reason ends the world for good, on every process: a process that fails says so to
//!   all, one that is killed is noticed by its closed connection, one that is stopped by its silence.
//! - **RV-4** a connection counts when both ends have proved that they hold the same secret. Before that a
//!   stranger can make the listening process keep a socket and a few hundred bytes for a few seconds, and
//!   those of all strangers are bounded and give way to whoever knocks; after it every message is bounded and
//!   carries a tag.
//!
//! Processes form a star: the process of rank 0 listens, the others connect, and what one says is passed on.
//! Connections are kept for the life of the world. What travels here is small (agreement, names, reports) but
//! for checkpoints; weights and gradients go from device to device. What the bytes mean is the business of
//! the modules above; there is no encryption.
//!
//! Plain threads and sockets of std, not the async runtime: ranks are threads that block, a world has few
//! connections, and a runtime that a user keeps busy must not silence a heartbeat.
//!
//! One idea per file: `environment` and `secret` are what a process is given, `handshake` lets two processes
//! trust each other, `host_name` tells hosts apart, `wire` writes numbers, `sealed` carries `message`s,
//! `timed` ends what takes too long, `door` lets processes in and strangers not, `join` makes a world of
//! connections, `link` serves one of them and `outgoing` is the way through it, `board` keeps contributions,
//! `shared` is where ranks wait, `gather` brings much to rank 0.

mod board;
mod door;
mod environment;
mod error;
mod gather;
mod handshake;
mod host_name;
mod join;
mod link;
mod message;
mod outgoing;
mod sealed;
mod secret;
mod shared;
mod timed;
mod wire;

pub use board::Topic;
pub use environment::{Launcher, ProcessEnvironment};
pub use error::RendezvousError;
#[doc(hidden)]
pub use host_name::HostName;
#[doc(hidden)]
pub use message::cut;
pub use secret::Secret;
#[doc(hidden)]
pub use wire::{Reader, Truncated, Writer};

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use link::Links;
use shared::Shared;
use warpweft_base::id::RankId;

/// Our variables by which a launch speaks to this module; they are no keys of a configuration.
#[doc(hidden)]
pub const VARIABLES: [&str; 4] =
    [secret::SECRET, secret::SECRET_FILE, environment::OWN_PORT, host_name::OWN_HOST];

/// A year. Times that lie further ahead may not be numbers of the clock.
const LONGEST_DEADLINE: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The ranks of a world, as one process sees them.
#[derive(Debug)]
pub struct Rendezvous {
    shared: Arc<Shared>,
    /// Connections to other processes; none if all ranks are here.
    links: Links,
}

impl Rendezvous {
    /// Bytes of one contribution, at most.
    pub const MOST_BYTES: usize = board::MOST;

    /// A world of `ranks` ranks of this process, which meet within `deadline` of each other. One of more than a year is
    /// a year.
    #[must_use]
    pub fn of_threads(ranks: u32, deadline: Duration) -> Self {
        let shared = Shared::new(ranks as usize, 0..ranks as usize, deadline.min(LONGEST_DEADLINE));
        Self { shared: Arc::new(shared), links: Links::default() }
    }

    /// A world whose ranks are split over processes: waits for all of them. This process owns `ranks` ranks;
    /// numbers are given out in the order of processes. The secret may be missing if there is one process
    /// only.
    ///
    /// # Errors
    /// [`RendezvousError`]: a port in use, a process that is missing or came twice, another secret, another
    /// version. It comes after `deadline` at the latest; for a process that was let in, the deadline and a
    /// few seconds are counted anew from then, as the process of rank 0 may have begun only then and is the
    /// one that knows who is missing.
    pub fn of_processes(
        environment: &ProcessEnvironment,
        ranks: u32,
        secret: Option<&Secret>,
        deadline: Duration,
    ) -> Result<Self, RendezvousError> {
        let deadline = deadline.min(LONGEST_DEADLINE);
        let joined = join::join(environment, ranks, secret, deadline)?;
        let shared = Arc::new(Shared::new(joined.ranks, joined.own.clone(), deadline));
        let links = Links::start(&shared, joined.connections)?;
        Ok(Self { shared, links })
    }

    /// Number of ranks of the world.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.shared.ranks()).unwrap_or(u32::MAX)
    }

    /// The ranks of this process, in order.
    pub fn own(&self) -> impl ExactSizeIterator<Item = RankId> + use<> {
        self.shared.own().map(RankId::at)
    }

    /// Positions of the ranks of this process.
    #[must_use]
    pub fn range(&self) -> Range<usize> {
        self.shared.own()
    }

    /// Are all ranks in this process?
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.shared.own().len() == self.shared.ranks()
    }

    /// How long anybody waits here.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.shared.deadline()
    }

    /// Contributes `value` to the topic's next round and returns every rank's, in rank order.
    ///
    /// # Errors
    /// [`RendezvousError::Absent`] when a rank left or did not come in time, [`RendezvousError::Ended`] in a
    /// world that has ended, [`RendezvousError::TooMuch`], and [`RendezvousError::NotOfThisProcess`].
    pub fn exchange(
        &self,
        rank: RankId,
        topic: Topic,
        value: &[u8],
    ) -> Result<Vec<Arc<[u8]>>, RendezvousError> {
        self.shared.contribute(rank, topic, value)?;
        self.shared.collect(rank, topic)
    }

    /// As [`Rendezvous::exchange`], called once for all ranks of this process with one value each.
    ///
    /// # Errors
    /// As [`Rendezvous::exchange`].
    pub fn exchange_all(&self, topic: Topic, values: &[Vec<u8>]) -> Result<Vec<Arc<[u8]>>, RendezvousError> {
        for (rank, value) in self.own().zip(values) {
            self.shared.contribute(rank, topic, value)?;
        }
        let mut all = Vec::new();
        for rank in self.own() {
            all = self.shared.collect(rank, topic)?;
        }
        Ok(all)
    }

    /// Until what this returns is dropped, other ranks of this process wait for `rank` without a deadline: it lives,
    /// and how long what it does may take is for somebody else to say. The end of the world ends their waits all
    /// the same.
    #[doc(hidden)]
    #[must_use]
    pub fn busy(&self, rank: RankId) -> Busy<'_> {
        self.shared.busy(rank, true);
        Busy { shared: &self.shared, rank }
    }

    /// A rank comes to no meeting any more, in good order: who needs it from now on gets `reason`.
    pub fn leave(&self, rank: RankId, reason: &str) {
        self.shared.leave(rank, reason);
    }

    /// Ends the world for all ranks of all processes, unless it has ended, and returns why it has.
    pub fn end(&self, reason: &str) -> String {
        self.shared.end(reason)
    }

    /// Why the world has ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.shared.ended()
    }
}

/// A rank that does something which may take long ([`Rendezvous::busy`]).
#[doc(hidden)]
#[derive(Debug)]
pub struct Busy<'r> {
    shared: &'r Shared,
    rank: RankId,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.shared.busy(self.rank, false);
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        self.links.close(&self.shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_base::id::RankId;

    #[test]
    fn ranks_meet_under_a_deadline_that_lies_beyond_the_clock() {
        let world = Rendezvous::of_threads(2, Duration::MAX);
        assert_eq!(world.deadline(), LONGEST_DEADLINE);
        let said = |rank| world.exchange(RankId::at(rank), Topic::Work, &[rank as u8]).unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| said(1));
            assert_eq!(said(0), other.join().unwrap());
        });
    }
}
