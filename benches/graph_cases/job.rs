//! One size on all ranks: where everything lies, what is in it before and must be in it afterwards.
//!
//! Law: a rank's source is full of the rank's own byte, but for the first word of each round's slot, to which
//! the kernel of the round adds one in every replay. So a pull that overtook the kernel in the last replay is
//! seen in what it brought.

use std::time::Instant;

use cudarc::driver::{result, sys};

use super::machine::{Machine, Rank};
use super::{at, guard};

/// Times that something alone is enqueued.
const ALONE: usize = 64;

#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) rounds: usize,
    /// That a rank pulls from each peer in a round.
    pub(crate) bytes: usize,
}

/// What one kernel and one pull take with nothing beside them.
pub(crate) struct Alone {
    pub(crate) kernel_us: f64,
    pub(crate) pull_us: f64,
}

impl Job<'_> {
    /// What `rank` offers in a round.
    pub(crate) fn source(&self, rank: &Rank, round: usize) -> sys::CUdeviceptr {
        rank.source + (round * self.bytes) as u64
    }

    /// Where `rank` has what it pulled from `peer` in a round.
    pub(crate) fn target(&self, rank: &Rank, round: usize, peer: usize) -> sys::CUdeviceptr {
        rank.target + ((round * self.machine.ranks.len() + peer) * self.bytes) as u64
    }

    /// Where `peer` says to `rank` that its kernel of a round is done.
    pub(crate) fn word(&self, rank: &Rank, round: usize, peer: usize) -> sys::CUdeviceptr {
        rank.words + ((round * self.machine.ranks.len() + peer) * size_of::<u32>()) as u64
    }

    pub(crate) fn peers(&self, rank: &Rank) -> impl Iterator<Item = &Rank> {
        let own = rank.number;
        self.machine.ranks.iter().filter(move |peer| peer.number != own)
    }

    /// Puts a pull on the copy stream of `rank`, whose context is current.
    pub(crate) fn pull(&self, rank: &Rank, round: usize, peer: &Rank) -> Result<(), String> {
        let (from, to) = (self.source(peer, round), self.target(rank, round, peer.number));
        // SAFETY: both slots are inside of their allocations; the target is written by this pull alone.
        unsafe { result::memcpy_dtod_async(to, from, self.bytes, rank.copy) }.map_err(at("cuMemcpyDtoDAsync"))
    }

    /// Zeroes the words that peers write to `rank`, and waits. Its context is current, and no peer runs.
    pub(crate) fn clear_words(&self, rank: &Rank) -> Result<(), String> {
        let bytes = self.rounds * self.machine.ranks.len() * size_of::<u32>();
        // SAFETY: the words are this rank's, and nobody else writes them now.
        unsafe { result::memset_d8_async(rank.words, 0, bytes, rank.compute) }
            .map_err(at("cuMemsetD8Async"))?;
        rank.drain(rank.compute)
    }

    /// All memory as it is before the first replay. Nothing runs.
    pub(crate) fn reset(&self) -> Result<(), String> {
        let slots = self.rounds * self.bytes;
        for rank in &self.machine.ranks {
            rank.make_current()?;
            // SAFETY: the ranges are this rank's, and nobody uses them.
            unsafe {
                result::memset_d8_sync(rank.source, own_byte(rank.number), slots)
                    .map_err(at("cuMemsetD8"))?;
                result::memset_d8_sync(rank.target, 0, slots * self.machine.ranks.len())
                    .map_err(at("cuMemsetD8"))?;
            }
            self.clear_words(rank)?;
            result::ctx::synchronize().map_err(at("cuCtxSynchronize"))?;
        }
        Ok(())
    }

    /// Everything once, each for itself: the driver loads code at its first use, which may wait for all that
    /// runs, and where ranks wait for each other, for ever.
    pub(crate) fn warm(&self) -> Result<(), String> {
        for rank in &self.machine.ranks {
            rank.make_current()?;
            rank.spin(self.source(rank, 0))?;
            rank.drain(rank.compute)?;
            self.peers(rank).try_for_each(|peer| self.pull(rank, 0, peer))?;
            rank.drain(rank.copy)?;
        }
        Ok(())
    }

    /// Microseconds of one kernel, and of one pull, out of many one behind the other.
    pub(crate) fn alone(&self) -> Result<Alone, String> {
        let [rank, peer, ..] = &self.machine.ranks[..] else {
            return Err("two ranks are needed".to_owned());
        };
        rank.make_current()?;
        let time = |stream, enqueue: &dyn Fn(usize) -> Result<(), String>| {
            let mut best = f64::INFINITY;
            for _ in 0..3 {
                let begin = Instant::now();
                (0..ALONE).try_for_each(|number| enqueue(number % self.rounds))?;
                rank.drain(stream)?;
                best = best.min(begin.elapsed().as_secs_f64() * 1e6 / ALONE as f64);
            }
            Ok::<f64, String>(best)
        };
        Ok(Alone {
            kernel_us: time(rank.compute, &|round| rank.spin(self.source(rank, round)))?,
            pull_us: time(rank.copy, &|round| self.pull(rank, round, peer))?,
        })
    }

    /// Does every rank hold what its peers offered in the last of so many replays?
    ///
    /// # Panics
    /// It does not.
    pub(crate) fn check(&self, replays: usize) {
        let ranks = self.machine.ranks.len();
        let mut pulled = vec![0_u32; ranks * self.bytes / size_of::<u32>()];
        for rank in &self.machine.ranks {
            rank.make_current().unwrap();
            for round in 0..self.rounds {
                // SAFETY: the slots of a round lie one behind the other, and nothing runs.
                unsafe { result::memcpy_dtoh_sync(&mut pulled, self.target(rank, round, 0)) }.unwrap();
                for (peer, words) in pulled.chunks_exact(self.bytes / size_of::<u32>()).enumerate() {
                    if peer != rank.number {
                        hold(words, peer, replays)
                            .unwrap_or_else(|fault| panic!("rank {}, round {round}: {fault}", rank.number));
                    }
                }
            }
            guard::alive();
        }
    }
}

fn own_byte(rank: usize) -> u8 {
    rank as u8 + 1
}

/// Holds what was pulled from `peer` against what it offered.
fn hold(words: &[u32], peer: usize, replays: usize) -> Result<(), String> {
    let pattern = u32::from_ne_bytes([own_byte(peer); 4]);
    let counted = words[0].wrapping_sub(pattern);
    if counted as usize != replays {
        return Err(format!(
            "the pull from rank {peer} brought count {counted} of {replays}: it did not wait for the kernel"
        ));
    }
    match words[1..].iter().position(|word| *word != pattern) {
        None => Ok(()),
        Some(at) => Err(format!(
            "the pull from rank {peer} brought {:#010x} in word {}, which was offered as {pattern:#010x}",
            words[at + 1],
            at + 1
        )),
    }
}
