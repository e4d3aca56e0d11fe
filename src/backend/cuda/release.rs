//! How a rank of a world that has ended lets its device run on without its peers.
//!
//! Laws:
//! - **RL-1** All words of a rank are opened for good before one of its communicators is aborted. Aborting
//!   gives memory back. That waits for the device, with a lock held that other calls of the driver need: NCCL
//!   was seen in `cuMemFreeHost`, the device at a word, and the rank that would have set the word in a copy
//!   that waited for the lock. Once the words are open, the device runs on without a call of the host.
//! - Memory of the host is mapped by every GPU of a process, so giving it back may wait for all of them. The
//!   ranks of a process therefore open their words before any of them aborts; one that does not come within
//!   [`PATIENCE`] is in a closure, or has nothing on its lanes.
//! - It is done once for each rank, whatever first notices the end: a wait, or giving up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::nccl::Communicator;
use super::options::Transport;
use super::signal::Signals;
use super::stream::Stream;
use super::world::World;
use crate::id::RankId;

/// How long the copy that opens the words may take, and how long the other ranks of the process are waited
/// for.
const PATIENCE: Duration = Duration::from_millis(250);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// Ends every wait of one rank for a peer.
#[derive(Debug)]
pub(super) struct Release {
    /// What is copied into the words.
    open: Vec<u32>,
    begun: AtomicBool,
}

/// How many ranks of this process have opened their words.
#[derive(Debug, Default)]
pub(super) struct Released(AtomicUsize);

impl Release {
    pub(super) fn new(signals: Signals) -> Self {
        Self { open: signals.open(), begun: AtomicBool::new(false) }
    }

    /// Opens the words and begins to abort the communicators of `rank`, in a world that has ended. The second
    /// time it does nothing.
    pub(super) fn begin(
        &self,
        world: &World,
        rank: RankId,
        transfers: &Stream,
        communicators: &[Arc<Communicator>],
    ) {
        if self.begun.swap(true, Ordering::SeqCst) {
            return;
        }
        if world.network.transport == Transport::Peer {
            self.open_words(world, rank, transfers);
        }
        world.released.0.fetch_add(1, Ordering::SeqCst);
        if communicators.is_empty() {
            return;
        }
        let all = world.rendezvous.range().len();
        wait_while(|| world.released.0.load(Ordering::SeqCst) < all);
        communicators.iter().for_each(|one| one.begin_abort());
    }

    fn open_words(&self, world: &World, rank: RankId, transfers: &Stream) {
        let Some(home) = world.home(rank) else { return };
        // SAFETY: the words are as many as `open` has. Nothing changes `open`, which is not given back once
        // the copy was begun.
        let begun = unsafe { transfers.begin_upload(bytemuck::cast_slice(&self.open), home.signals) };
        if begun.is_ok() {
            wait_while(|| matches!(transfers.is_done(), Ok(false)));
        }
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

fn wait_while(condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while condition() && begun.elapsed() < PATIENCE {
        std::thread::sleep(PAUSE);
    }
}
