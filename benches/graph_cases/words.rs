//! The order between ranks by words, as the library keeps it (`src/backend/cuda/signal.rs`): a stream writes
//! a word in the memory of the rank that waits, whose stream waits for it there.
//!
//! Law: a write stands behind a system-wide fence, so whoever has seen the word sees what was written before.

use cudarc::driver::sys;

use super::job::Job;
use super::machine::Rank;

/// Where a rank says that its kernel is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signaled {
    /// On the compute stream; the copy stream only waits.
    BehindTheKernel,
    /// On the copy stream, in one batch with the waits and with clearing the words.
    BeforeTheCopies,
}

/// The batches of one rank, per round.
pub(crate) struct Words {
    compute: Vec<Vec<sys::CUstreamBatchMemOpParams>>,
    copy: Vec<Vec<sys::CUstreamBatchMemOpParams>>,
}

impl Words {
    pub(crate) fn new(job: &Job<'_>, rank: &Rank, signaled: Signaled) -> Self {
        let (mut compute, mut copy) = (Vec::new(), Vec::new());
        for round in 0..job.rounds {
            let signals = job.peers(rank).map(|peer| write(job.word(peer, round, rank.number), 1));
            let own = |peer: &Rank| job.word(rank, round, peer.number);
            let waits = job.peers(rank).map(|peer| wait(own(peer), 1));
            match signaled {
                Signaled::BehindTheKernel => {
                    compute.push(signals.collect());
                    copy.push(waits.collect());
                }
                Signaled::BeforeTheCopies => {
                    let cleared = job.peers(rank).map(|peer| write(own(peer), 0));
                    compute.push(Vec::new());
                    copy.push(signals.chain(waits).chain(cleared).collect());
                }
            }
        }
        Self { compute, copy }
    }

    /// What goes behind the kernel of a round.
    pub(crate) fn behind_the_kernel(&self, rank: &Rank, round: usize) -> Result<(), String> {
        enqueue(&self.compute[round], rank.compute)
    }

    /// What goes before the copies of a round.
    pub(crate) fn before_the_copies(&self, rank: &Rank, round: usize) -> Result<(), String> {
        enqueue(&self.copy[round], rank.copy)
    }
}

fn enqueue(batch: &[sys::CUstreamBatchMemOpParams], stream: sys::CUstream) -> Result<(), String> {
    if batch.is_empty() {
        return Ok(());
    }
    // SAFETY: the stream and the words are kept until the process ends, and the driver only reads the
    // parameters although its signature takes them mutably.
    unsafe { sys::cuStreamBatchMemOp_v2(stream, batch.len() as u32, batch.as_ptr().cast_mut(), 0) }
        .result()
        .map_err(super::at("cuStreamBatchMemOp"))
}

fn write(to: sys::CUdeviceptr, value: u32) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: all bytes zero is a valid value of this union of plain numbers.
    let mut operation: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    operation.writeValue.operation = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = to;
    operation.writeValue.__bindgen_anon_1.value = value;
    operation
}

/// Until the word is at least `value`.
fn wait(on: sys::CUdeviceptr, value: u32) -> sys::CUstreamBatchMemOpParams {
    // SAFETY: as in `write`.
    let mut operation: sys::CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    operation.waitValue.operation = sys::CUstreamBatchMemOpType::CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operation.waitValue.address = on;
    operation.waitValue.__bindgen_anon_1.value = value;
    operation.waitValue.flags = sys::CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    operation
}
