//! Releases what a device waits for once its world has ended, so that it runs on without its peers.
//!
//! Laws:
//! - **RL-1** The copy that opens all words of a rank for good is on its way to the device before one of its
//!   communicators is aborted. Aborting gives memory back. That waits for the device, with a lock held that
//!   other calls of the driver need: NCCL was seen in `cuMemFreeHost`, the device at a word, and the rank that
//!   would have set the word in a copy that waited for the lock. Once that copy is enqueued, the device runs on
//!   without a call of the host, so it is not waited for. Where it cannot be enqueued, the GPUs are abandoned.
//!   Communicators are aborted even then: at the end of the process NCCL's library waits for its kernels (seen
//!   in `cuLibraryUnload`).
//! - **RL-2** Memory of the host is mapped by every GPU of a process, so giving it back may wait for all of
//!   them. The ranks of a process therefore wait for each other here before any of them aborts, but not past
//!   [`PATIENCE`]. A rank that is between steps is not missed. One that is in a closure for longer may be: its
//!   device may stand at a word or in NCCL, and an abort beside it may then not end.
//! - The rank's own thread does it, once, whatever first notices the end: a wait, or giving up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::options::Transport;
use crate::transport::communicator::Communicator;
use crate::transport::signal::Signals;
use crate::world::World;
use warpweft_base::id::RankId;

/// How long the other ranks of the process are waited for. They look at the state of the world before every
/// task, and all the time while they wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// Ends every wait of one rank for a peer.
#[derive(Debug)]
pub(crate) struct Release {
    /// What is copied into the words.
    open: Vec<u32>,
    begun: AtomicBool,
}

impl Release {
    pub(crate) fn new(signals: Signals) -> Self {
        Self { open: signals.open(), begun: AtomicBool::new(false) }
    }

    /// Opens the words and begins to abort the communicators of `rank`, in a world that has ended. The second
    /// time it does nothing.
    pub(crate) fn begin(
        &self,
        world: &World,
        rank: RankId,
        transfers: &Stream,
        communicators: &[Arc<Communicator>],
    ) {
        if self.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        if world.network.transport == Transport::Peer && self.open_words(world, rank, transfers).is_err() {
            world.abandon();
        }
        world.released.come();
        if communicators.is_empty() {
            return;
        }
        world.released.wait_for(world.rendezvous.range().len(), PATIENCE);
        communicators.iter().for_each(|one| one.begin_abort());
    }

    /// Opens the words for good, once what is enqueued here has run.
    fn open_words(&self, world: &World, rank: RankId, transfers: &Stream) -> Result<(), CudaFailure> {
        // Without memory there is no lane that could wait.
        let Some(home) = world.home(rank) else { return Ok(()) };
        // SAFETY: the words are as many as `open` has. Nothing changes `open`, which is not given back once
        // the copy was begun.
        unsafe { transfers.begin_upload(bytemuck::cast_slice(&self.open), home.signals) }
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        // The copy may still read it, and it is small.
        if self.begun.load(Ordering::SeqCst) {
            std::mem::forget(std::mem::take(&mut self.open));
        }
    }
}
