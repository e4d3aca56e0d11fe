//! A simulated world: a cluster, a number of ranks, and the one that is driven.
//!
//! Law: nothing is global; worlds do not know each other, and time in one passes only when its backend is driven.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::SimBackend;
use super::machine::Machine;
use crate::BackendError;
use crate::bell::lock;
use warpweft_plan::cluster::{Cluster, Prices};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// Ranks in virtual time.
#[derive(Debug)]
pub struct SimWorld {
    shared: Arc<Shared>,
    taken: AtomicBool,
}

/// What world and backend share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) prices: Prices,
    pub(super) mesh: Mesh,
    pub(super) reduce: Reduce,
    pub(super) origin: Instant,
    pub(super) machine: Mutex<Machine>,
    pub(super) aborted: Mutex<Option<String>>,
}

impl SimWorld {
    /// A world of the mesh's ranks on `cluster`, with its clocks at 0. `reduce` is what the backend reports;
    /// the time of a reduction does not depend on it.
    ///
    /// # Errors
    /// [`BackendError::NoLinks`].
    pub fn new(mesh: Mesh, cluster: Cluster, reduce: Reduce) -> Result<Self, BackendError> {
        let prices = Prices::new(&cluster, mesh).ok_or_else(|| BackendError::NoLinks {
            ranks: mesh.ranks(),
            cluster: cluster.name.clone(),
            gpus: cluster.ranks_of_node(),
        })?;
        let machine = Mutex::new(Machine::new(&cluster, mesh));
        let (origin, aborted) = (Instant::now(), Mutex::new(None));
        let shared = Arc::new(Shared { prices, mesh, reduce, origin, machine, aborted });
        Ok(Self { shared, taken: AtomicBool::new(false) })
    }

    /// The backend of rank 0, which stands for all ranks.
    ///
    /// # Errors
    /// [`BackendError::SimulatorTaken`] the second time.
    pub fn backend(&self) -> Result<SimBackend, BackendError> {
        if self.taken.swap(true, Ordering::SeqCst) {
            return Err(BackendError::SimulatorTaken);
        }
        Ok(SimBackend { shared: Arc::clone(&self.shared) })
    }

    /// Virtual time since the world was made, as far as the host has waited, on the rank that is furthest ahead.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(lock(&self.shared.machine).latest())
    }
}
