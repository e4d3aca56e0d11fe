//! The order between ranks by words, as the library keeps it (`src/backend/cuda/signal.rs`): a stream writes
//! a word in the memory of the rank that waits, whose stream waits for it there.
//!
//! Law: a write stands behind a system-wide fence, so whoever has seen the word sees what was written before.

use cudarc::driver::sys;

use super::job::Job;
use super::machine::Rank;

/// The batches of one rank, per round: it signals its peers, waits for their words, and clears them. All on the
/// copy stream. Signaled on the compute stream, behind the kernel, recorded ranks never came to an end: a graph
/// runs its branches in an order of its own, and one that waits may stand before the one that signals.
pub(crate) struct Words(Vec<Vec<sys::CUstreamBatchMemOpParams>>);

impl Words {
    pub(crate) fn new(job: &Job<'_>, rank: &Rank) -> Self {
        let meeting = |round| {
            let own = |peer: &Rank| job.word(rank, round, peer.number);
            let signals = job.peers(rank).map(|peer| write(job.word(peer, round, rank.number), 1));
            let waits = job.peers(rank).map(|peer| wait(own(peer), 1));
            let cleared = job.peers(rank).map(|peer| write(own(peer), 0));
            signals.chain(waits).chain(cleared).collect()
        };
        Self((0..job.rounds).map(meeting).collect())
    }

    /// What goes before the copies of a round.
    pub(crate) fn before_the_copies(&self, rank: &Rank, round: usize) -> Result<(), String> {
        enqueue(&self.0[round], rank.copy)
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
