//! A simulated world: a cluster, a number of ranks, and the one that is driven.
//!
//! Law: nothing is global; worlds do not know each other, and time in one passes only when its backend is driven.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::SimBackend;
use super::machine::Machine;
use crate::bell::lock;
use warpweft_plan::cluster::{Cluster, Prices};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// Why a world or its backend cannot be made.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// More ranks than one node has GPUs, and no links between nodes.
    #[error(
        "{ranks} ranks need more than one node of `{cluster}`, which has {gpus} GPUs a node and no links between nodes; use at most {gpus} ranks, or give the cluster a table `between`"
    )]
    NoLinks {
        /// Ranks asked for.
        ranks: u32,
        /// The cluster.
        cluster: String,
        /// GPUs of a node.
        gpus: u32,
    },
    /// A second backend.
    #[error("the backend of this simulated world was taken before; one rank stands for all of them")]
    Taken,
}

warpweft_base::debug_in_words!(SimError);

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
    /// [`SimError::NoLinks`].
    pub fn new(mesh: Mesh, cluster: Cluster, reduce: Reduce) -> Result<Self, SimError> {
        let prices = Prices::new(&cluster, mesh).ok_or_else(|| SimError::NoLinks {
            ranks: mesh.ranks(),
            cluster: cluster.name.clone(),
            gpus: cluster.gpus_per_node,
        })?;
        let machine = Mutex::new(Machine::new(&cluster, mesh));
        let (origin, aborted) = (Instant::now(), Mutex::new(None));
        let shared = Arc::new(Shared { prices, mesh, reduce, origin, machine, aborted });
        Ok(Self { shared, taken: AtomicBool::new(false) })
    }

    /// The backend of rank 0, which stands for all ranks.
    ///
    /// # Errors
    /// [`SimError::Taken`] the second time.
    pub fn backend(&self) -> Result<SimBackend, SimError> {
        if self.taken.swap(true, Ordering::SeqCst) {
            return Err(SimError::Taken);
        }
        Ok(SimBackend { shared: Arc::clone(&self.shared) })
    }

    /// Virtual time since the world was made, on the rank that is furthest ahead.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        Duration::from_nanos(lock(&self.shared.machine).latest())
    }
}
