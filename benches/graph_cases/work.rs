//! The work of one rank, round by round, as it is put on its two streams: the same for all ways.
//!
//! Laws:
//! - The kernel of round r + 2 waits for this rank's pulls of round r: one round is prefetched.
//! - The pulls of a round wait for the kernels of that round of all ranks, this one's among them, as a
//!   collective of the library waits for its own rank first. So no wait stands before the kernel that peers
//!   wait for, in whatever order a graph's branches are run.

use cudarc::driver::{result, sys};

use super::at;
use super::job::Job;
use super::machine::Rank;
use super::words::Words;

/// So many rounds back lie the pulls that a kernel waits for.
const BACK: usize = 2;

pub(crate) struct Work<'a> {
    pub(crate) job: Job<'a>,
    pub(crate) rank: &'a Rank,
    /// Passed behind the kernel of each round.
    kernels: Vec<Event>,
    /// Passed behind the pulls of each round.
    pulls: Vec<Event>,
}

impl<'a> Work<'a> {
    pub(crate) fn new(job: Job<'a>, rank: &'a Rank) -> Result<Self, String> {
        rank.make_current()?;
        let events = || (0..job.rounds).map(|_| Event::new()).collect::<Result<_, _>>();
        Ok(Self { job, rank, kernels: events()?, pulls: events()? })
    }

    /// Puts all rounds on the streams, ordered with the peers by words: from the compute stream on, and back
    /// to it.
    pub(crate) fn enqueue(&self, words: &Words) -> Result<(), String> {
        for round in 0..self.job.rounds {
            self.kernel(round)?;
            self.await_kernel_of(self, round)?;
            words.before_the_copies(self.rank, round)?;
            self.pull(round)?;
        }
        self.join(self.rank.compute)
    }

    /// Puts the kernel of a round on the compute stream.
    pub(crate) fn kernel(&self, round: usize) -> Result<(), String> {
        if let Some(before) = round.checked_sub(BACK) {
            self.pulls[before].hold_back(self.rank.compute)?;
        }
        self.rank.spin(self.job.source(self.rank, round))?;
        self.kernels[round].record(self.rank.compute)
    }

    /// Holds the pulls of a round back until `other` has run its kernel.
    pub(crate) fn await_kernel_of(&self, other: &Self, round: usize) -> Result<(), String> {
        other.kernels[round].hold_back(self.rank.copy)
    }

    /// Puts the pulls of a round on the copy stream.
    pub(crate) fn pull(&self, round: usize) -> Result<(), String> {
        self.job.peers(self.rank).try_for_each(|peer| self.job.pull(self.rank, round, peer))?;
        self.pulls[round].record(self.rank.copy)
    }

    /// Holds `stream` back until everything is done.
    pub(crate) fn join(&self, stream: sys::CUstream) -> Result<(), String> {
        self.pulls.last().map_or(Ok(()), |last| last.hold_back(stream))
    }
}

/// A point in a stream's work; it keeps no time.
pub(crate) struct Event(sys::CUevent);

impl Event {
    /// Of the context that is current.
    pub(crate) fn new() -> Result<Self, String> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        result::event::create(flags).map(Self).map_err(at("cuEventCreate"))
    }

    pub(crate) fn record(&self, stream: sys::CUstream) -> Result<(), String> {
        // SAFETY: both handles are alive, and belong to one context.
        unsafe { result::event::record(self.0, stream) }.map_err(at("cuEventRecord"))
    }

    /// Holds `stream`, of any context, back until the event is passed.
    pub(crate) fn hold_back(&self, stream: sys::CUstream) -> Result<(), String> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        unsafe { result::stream::wait_event(stream, self.0, flags) }.map_err(at("cuStreamWaitEvent"))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made once, destroyed once here. A failure leaves nothing to be done.
        let _ = unsafe { result::event::destroy(self.0) };
    }
}
