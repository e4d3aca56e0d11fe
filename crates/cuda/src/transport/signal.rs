//! Device-side barriers without the host: words in each other's memory, set and waited for by streams.
//! No kernel takes part. Where ranks share a GPU, the host does
//! ([`HostMeeting`](crate::world::HostMeeting)), and kernels copy.
//!
//! Laws:
//! - **PL-8** A rank's memory is written by a peer only between two meetings: one in which all ranks say that
//!   their target may be written (*ready*), and one in which all say that they have written (*done*).
//! - The ranks of one host that a collective brings together meet; their memory reaches each other. Every
//!   host and every team meets by itself.
//! - A stream writes a word after a system-wide fence (the flag that leaves it out is refused on an H200), and
//!   copies it only when all before it in the stream is done. So a rank that has seen a word sees what was
//!   written before it, and a cleared word is seen cleared before the next meeting signals.
//! - A peer's word is set by the stream itself where its driver can ([`SignalBy`]),
//!   otherwise by copying a one. Own words are always cleared, and waited for, by the stream.
//! - A word has two halves of 32 bits. The first is 1 from the peer's signal until this rank has waited for
//!   it and cleared it, so the same commands work in every step and in every replay of a captured one. A peer
//!   signals a word again only after the other meeting of the pair, which needs this rank's signal, sent after
//!   the word was cleared: no signal is lost. This holds for each pair of ranks, which meet in the same order
//!   on both, and so for whatever teams they meet in.
//! - The second half is 0 until the world has ended. Then it is set (see [`crate::shutdown::release`]), and nobody
//!   clears it: the word is open for good, however often streams and kernels come to it. What then runs reads
//!   whatever is there, and its results are not reported.

use cudarc::driver::sys;

use crate::device::address::DeviceAddress;
use crate::device::context::driver_version;
use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::kernels::{CopyOperand, Mark};
use warpweft_backend::SignalBy;
use warpweft_base::id::{CommId, RankId};

/// The most communicators of one rank: each has words after the arena, whose size must be known before plans
/// are. A configuration requests two; a plan made by hand with more is refused when its collectives are
/// bound.
const COMMUNICATORS: usize = 8;

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Bytes of the half that peers set.
const SIGNAL: usize = size_of::<u32>();
/// A bit of each half: a stream that waits for a word goes on when either is set.
const SIGNALLED_OR_OPEN: u64 = 1 | 1 << 32;

/// The first CUDA, 13.1, whose streams write no words into the memory of other GPUs. A maintainer of NCCL says so
/// (<https://github.com/NVIDIA/nccl/issues/2052>).
const FIRST_WITHOUT_REMOTE_WORDS: i32 = 13_010;

/// What sets the words by which ranks meet: never [`SignalBy::Auto`].
pub(crate) fn signal_by(wish: SignalBy) -> Result<SignalBy, CudaFailure> {
    driver_version().map(|driver| settled(wish, driver))
}

const fn settled(wish: SignalBy, driver: i32) -> SignalBy {
    match wish {
        SignalBy::Auto if driver >= FIRST_WITHOUT_REMOTE_WORDS => SignalBy::Copy,
        SignalBy::Auto => SignalBy::Stream,
        SignalBy::Stream | SignalBy::Copy => wish,
    }
}

/// Where one rank's memory is, for its peers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// The arena.
    pub(crate) arena: DeviceAddress,
    /// The words after it, with which ranks signal each other.
    pub(crate) signals: DeviceAddress,
    /// Where what peers send waits, after the words (see [`super::receive_buffers`]).
    pub(crate) receive_buffer: DeviceAddress,
}

/// The two meetings around bytes that ranks write into each other's memory: once in most collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// Every rank's source is written, and what will be written over is of no use any more.
    Ready,
    /// Every rank has written what the others wait for.
    Done,
}

/// Where the words are: after each arena, in the order communicator, meeting, peer. After them is a one, which
/// is copied where words are set by copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signals {
    ranks: usize,
}

impl Signals {
    pub(crate) const fn new(ranks: usize) -> Self {
        Self { ranks }
    }

    /// Bytes of the words of one rank, and of the one after them.
    pub(crate) const fn bytes(self) -> usize {
        self.place_of_one() + WORD
    }

    /// How far after the first word the one is: the bytes of all words.
    const fn place_of_one(self) -> usize {
        COMMUNICATORS * 2 * self.ranks * WORD
    }

    /// Where the one is after the words that begin at `words`.
    pub(crate) fn one(self, words: DeviceAddress) -> DeviceAddress {
        words.plus(self.place_of_one())
    }

    /// What is in the words of one rank once all are open for good. First halves are set too: a copy writes
    /// whole words. So the one after them stays one.
    pub(crate) fn open(self) -> Vec<u32> {
        vec![1; self.bytes() / size_of::<u32>()]
    }

    /// Where `peer` signals to the rank whose words begin at `words`.
    fn word(
        self,
        words: DeviceAddress,
        communicator: CommId,
        meeting: Meeting,
        peer: RankId,
    ) -> Result<DeviceAddress, CudaFailure> {
        if communicator.index() >= COMMUNICATORS {
            return Err(CudaFailure::Refused(format!(
                "{communicator}: a rank has at most {COMMUNICATORS} communicators, numbered from 0; use fewer in the plan"
            )));
        }
        let pair = communicator.index() * 2 + usize::from(meeting == Meeting::Done);
        Ok(words.plus((pair * self.ranks + peer.index()) * WORD))
    }

    /// The words of a meeting that `rank` shares with each of `neighbours`.
    pub(crate) fn shared(
        self,
        rank: RankId,
        neighbours: &[RankId],
        homes: &[Home],
        communicator: CommId,
        meeting: Meeting,
    ) -> Result<Vec<Shared>, CudaFailure> {
        let words = |rank: RankId| {
            let missing = || CudaFailure::Refused(format!("{rank} is not in the world"));
            homes.get(rank.index()).map(|home| home.signals).ok_or_else(missing)
        };
        let own = words(rank)?;
        let with = |neighbour: &RankId| {
            Ok(Shared {
                there: self.word(words(*neighbour)?, communicator, meeting, rank)?,
                here: self.word(own, communicator, meeting, *neighbour)?,
            })
        };
        neighbours.iter().map(with).collect()
    }
}

/// The words of one meeting with one neighbour.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// In the neighbour's memory.
    pub(crate) there: DeviceAddress,
    /// In this rank's.
    pub(crate) here: DeviceAddress,
}

/// The signals of a meeting as copies of the `one`, for streams that set no words of others.
pub(crate) fn copied(one: DeviceAddress, words: &[Shared]) -> Vec<CopyOperand> {
    words.iter().map(|word| CopyOperand { from: one, to: word.there, bytes: SIGNAL }).collect()
}

/// The driver takes fewer than 256 operations at once.
const MOST_OF_A_BATCH: usize = 255;

/// Stream memory operations, enqueued as one batch, or several if they are many, and run in their order.
#[derive(Clone)]
pub(crate) struct MemoryOperations {
    all: Vec<sys::CUstreamBatchMemOpParams>,
}

impl MemoryOperations {
    /// A meeting with the ranks with which `words` are shared, where the stream both signals and waits.
    pub(crate) fn meet(words: &[Shared]) -> Self {
        Self::signal(words).then(Self::await_signals(words))
    }

    /// The signals of a meeting with the ranks with which `words` are shared.
    pub(crate) fn signal(words: &[Shared]) -> Self {
        Self { all: words.iter().map(|word| write(word.there, 1)).collect() }
    }

    /// What of a meeting follows the signals: all waits, then all words cleared.
    pub(crate) fn await_signals(words: &[Shared]) -> Self {
        let waits = words.iter().map(|word| wait(word.here));
        let cleared = words.iter().map(|word| write(word.here, 0));
        Self { all: waits.chain(cleared).collect() }
    }

    /// Leaves a mark for the host.
    pub(crate) fn mark(mark: Mark) -> Self {
        Self { all: vec![write(mark.word, mark.number)] }
    }

    /// These and then others, as one batch.
    pub(crate) fn then(mut self, others: Self) -> Self {
        self.all.extend(others.all);
        self
    }

    pub(crate) fn enqueue(&self, stream: &Stream) -> Result<(), CudaFailure> {
        self.all.chunks(MOST_OF_A_BATCH).try_for_each(|batch| {
            let count = u32::try_from(batch.len()).unwrap_or(u32::MAX);
            let first = batch.as_ptr().cast_mut();
            // SAFETY: the stream is alive, the words lie in live allocations, and the driver only reads the
            // parameters although its signature takes them mutably.
            let call = || unsafe { sys::cuStreamBatchMemOp_v2(stream.handle(), count, first, 0) };
            stream.meter().driver(call).result().map_err(CudaFailure::driver("cuStreamBatchMemOp"))
        })
    }
}

// SAFETY: parameters are numbers; the pointers among them are device addresses.
unsafe impl Send for MemoryOperations {}
// SAFETY: as above; they are never changed.
unsafe impl Sync for MemoryOperations {}

impl std::fmt::Debug for MemoryOperations {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} memory operations", self.all.len())
    }
}

fn write(to: DeviceAddress, value: u32) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: all bytes zero is a valid value of this union of plain numbers.
    let mut operation: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    operation.writeValue.operation = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = to.number();
    operation.writeValue.__bindgen_anon_1.value = value;
    operation
}

fn wait(at: DeviceAddress) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: as in `write`.
    let mut operation: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    operation.waitValue.operation = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64;
    operation.waitValue.address = at.number();
    operation.waitValue.__bindgen_anon_1.value64 = SIGNALLED_OR_OPEN;
    operation.waitValue.flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND as u32;
    operation
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_communicator_meeting_and_peer_has_a_word_of_its_own() {
        let signals = Signals::new(3);
        let mut words = BTreeSet::new();
        for communicator in (0..COMMUNICATORS).map(CommId::at) {
            for meeting in [Meeting::Ready, Meeting::Done] {
                for peer in (0..3).map(RankId::at) {
                    let word = signals.word(DeviceAddress::new(0), communicator, meeting, peer).unwrap();
                    assert!(word.number() + WORD as u64 <= signals.bytes() as u64);
                    assert!(word.number().is_multiple_of(WORD as u64));
                    assert!(words.insert(word), "{communicator}, {meeting:?}, {peer}");
                }
            }
        }
        let one = signals.one(DeviceAddress::new(0));
        assert_eq!(words.len() * WORD, usize::try_from(one.number()).unwrap(), "after all words");
        assert_eq!(signals.bytes(), words.len() * WORD + WORD);
        assert_eq!(
            signals.open().iter().sum::<u32>() as usize,
            signals.bytes() / SIGNAL,
            "the one stays one"
        );
        assert_eq!(signals.open().len() * size_of::<u32>(), signals.bytes());
        let beyond = CommId::at(COMMUNICATORS);
        assert!(signals.word(DeviceAddress::new(0), beyond, Meeting::Ready, RankId::new(0)).is_err());
    }

    #[test]
    fn a_rank_signals_all_others_before_it_waits_for_any() {
        let home = |at: u64| Home {
            arena: DeviceAddress::NULL,
            signals: DeviceAddress::new(at),
            receive_buffer: DeviceAddress::NULL,
        };
        let homes = [home(0x1000), home(0x2000), home(0x3000)];
        let meet = |rank: u32, neighbours: &[u32]| {
            let neighbours: Vec<_> = neighbours.iter().copied().map(RankId::new).collect();
            let signals = Signals::new(3);
            let words =
                signals.shared(RankId::new(rank), &neighbours, &homes, CommId::new(0), Meeting::Ready);
            words.map(|words| MemoryOperations::meet(&words))
        };
        let operations = meet(1, &[2, 0]).unwrap().all;
        // SAFETY: every operation begins with its kind.
        let waits: Vec<bool> = operations
            .iter()
            .map(
                |one| unsafe { one.operation } == sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_64,
            )
            .collect();
        assert_eq!(waits, [false, false, true, true, false, false]);
        // SAFETY: the third is a wait.
        let wait = unsafe { operations[2].waitValue };
        // SAFETY: a value of 64 bits is all of this union.
        let value = unsafe { wait.__bindgen_anon_1.value64 };
        let any_bit = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_AND as u32;
        assert_eq!((value, wait.flags), (1 | 1 << 32, any_bit), "either half of the word");
        let words =
            Signals::new(3).shared(RankId::new(1), &[RankId::new(2)], &homes, CommId::new(0), Meeting::Done);
        let words = words.unwrap();
        assert_eq!(MemoryOperations::await_signals(&words).all.len(), 2, "no signal");
        let one = Signals::new(3).one(homes[1].signals);
        let signal = CopyOperand { from: one, to: words[0].there, bytes: 4 };
        assert_eq!(copied(one, &words), [signal], "the signal, as a copy");
        assert_eq!(meet(1, &[0]).unwrap().all.len(), 3, "neighbours alone");
        assert!(meet(1, &[]).unwrap().all.is_empty());
        assert!(meet(3, &[0]).is_err() && meet(0, &[3]).is_err(), "a rank outside of the world");
    }

    #[test]
    fn drivers_behind_cuda_13_0_signal_by_copies_unless_set_otherwise() {
        let by = [12_080, 13_000, 13_010, 14_000].map(|driver| settled(SignalBy::Auto, driver));
        assert_eq!(by, [SignalBy::Stream, SignalBy::Stream, SignalBy::Copy, SignalBy::Copy]);
        assert_eq!(settled(SignalBy::Copy, 12_080), SignalBy::Copy);
        assert_eq!(settled(SignalBy::Stream, 14_000), SignalBy::Stream);
    }
}
