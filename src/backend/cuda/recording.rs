//! Recordings of one rank, and how they end with their world.
//!
//! Laws:
//! - A recording holds the communicators whose transfers are in it and goes before them: NCCL destroys a communicator, and ends aborting one,
//!   only when no recording of it is left.
//! - A world that ends takes the recordings away from whoever holds them, if NCCL is in them; they are never launched again. So aborts end, and memory is
//!   given back instead of abandoned. Others stay with their holders.

use std::sync::{Arc, Mutex, Weak};

use super::failure::CudaFailure;
use super::nccl::Communicator;
use super::stream::{Graph, Stream};
use crate::backend::bell::lock;

/// A recording of one rank: a step, or a segment of one.
#[derive(Debug)]
pub struct CudaGraph {
    /// Before the communicators.
    graph: Arc<Mutex<Option<Graph>>>,
    #[expect(dead_code, reason = "held, not read")]
    communicators: Vec<Arc<Communicator>>,
}

impl CudaGraph {
    /// Puts the recording on a stream.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), CudaFailure> {
        let ended =
            || CudaFailure::Refused("the recording ended with its world; make a new session".to_owned());
        stream.launch(lock(&self.graph).as_ref().ok_or_else(ended)?)
    }
}

/// The recordings of one rank that NCCL has a part in.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    all: Mutex<Vec<Weak<Mutex<Option<Graph>>>>>,
}

impl Recordings {
    /// A recording with transfers of these communicators.
    pub(super) fn keep(&self, graph: Graph, communicators: Vec<Arc<Communicator>>) -> CudaGraph {
        let graph = Arc::new(Mutex::new(Some(graph)));
        let mut all = lock(&self.all);
        all.retain(|one| one.strong_count() > 0);
        if !communicators.is_empty() {
            all.push(Arc::downgrade(&graph));
        }
        CudaGraph { graph, communicators }
    }

    /// Takes them all away.
    pub(super) fn end(&self) {
        for graph in lock(&self.all).drain(..).filter_map(|one| one.upgrade()) {
            drop(lock(&graph).take());
        }
    }
}
