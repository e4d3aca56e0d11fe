//! Where the threads of all ranks meet before they launch.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Spins: a thread that slept would start late by what waking it takes.
pub(crate) struct Barrier {
    ranks: usize,
    arrived: AtomicUsize,
    turn: AtomicUsize,
}

impl Barrier {
    pub(crate) const fn new(ranks: usize) -> Self {
        Self { ranks, arrived: AtomicUsize::new(0), turn: AtomicUsize::new(0) }
    }

    pub(crate) fn meet(&self) {
        let turn = self.turn.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.ranks {
            self.arrived.store(0, Ordering::Relaxed);
            self.turn.fetch_add(1, Ordering::Release);
            return;
        }
        while self.turn.load(Ordering::Acquire) == turn {
            spin_loop();
        }
    }
}
