//! Captured CUDA graphs of one rank: how its lanes capture, what holds a graph, and how it ends with its world.
//!
//! Laws:
//! - A capture forks from the first lane to all others and joins them again at its end (PL-7). Capturing
//!   ends whatever happened, or the first lane would never run anything again; where a closure failed, or a
//!   lane was not joined, nothing of it is kept.
//! - A capture holds the communicators whose transfers are in it and is dropped before them: NCCL destroys
//!   a communicator, and finishes aborting one, only when no capture of it is left.
//! - A world that ends takes the captures away from their holders, if NCCL is in them; they are never
//!   launched again. So aborts end, and memory is given back instead of abandoned. Others stay with their
//!   holders.

use std::sync::{Arc, Mutex, Weak};

use super::keep_alive::{CapturedGraph, KeepAlive};
use crate::bind::lane::CudaStream;
use crate::device::stream::{Graph, Stream};
use crate::failure::CudaFailure;
use crate::transport::communicator::Communicator;
use warpweft_backend::bell::lock;

/// A capture of one rank: a step, or a segment of one.
#[derive(Debug)]
pub struct CudaGraph {
    /// Dropped before the communicators, and before what it may use.
    graph: Arc<Mutex<Option<Graph>>>,
    #[expect(dead_code, reason = "held, not read")]
    communicators: Vec<Arc<Communicator>>,
    #[expect(dead_code, reason = "held, not read")]
    capture: CapturedGraph,
}

impl CudaGraph {
    /// Puts the capture on a stream.
    pub(crate) fn launch(&self, stream: &Stream) -> Result<(), CudaFailure> {
        let ended =
            || CudaFailure::Refused("the capture ended with its world; make a new session".to_owned());
        stream.launch(lock(&self.graph).as_ref().ok_or_else(ended)?)
    }
}

/// Begins to capture what is enqueued on these lanes. Their context is current.
pub(crate) fn begin(streams: &mut [CudaStream]) -> Result<(), CudaFailure> {
    let [first, others @ ..] = streams else {
        return Err(CudaFailure::Refused("there is no lane to capture".to_owned()));
    };
    first.stream.begin_capture()?;
    first.captures = true;
    // A lane that waits for an event of a captured stream is captured too.
    let forked = first.stream.record(&first.join).and_then(|()| {
        others.iter_mut().try_for_each(|other| {
            other.captures = true;
            other.stream.wait(&first.join)
        })
    });
    if forked.is_err() {
        // Nothing of it is kept; the lanes run again.
        drop(end(streams));
    }
    forked
}

/// Ends what [`begin`] began, and brings the capture to the device.
pub(crate) fn end(streams: &mut [CudaStream]) -> Result<Graph, CudaFailure> {
    let mut faults = Vec::new();
    for stream in streams.iter_mut() {
        stream.captures = false;
        // Nothing has run, so there is nothing to report of this step yet.
        faults.extend(stream.fault.take());
    }
    let [first, others @ ..] = streams else {
        return Err(CudaFailure::Refused("there is no lane that captures".to_owned()));
    };
    let joined = others.iter().try_for_each(|other| {
        other.stream.record(&other.join)?;
        first.stream.wait(&other.join)
    });
    // Capturing ends whatever happened, or the stream would never run anything again.
    let graph = first.stream.end_capture();
    joined?;
    if let Some(fault) = faults.first() {
        return Err(CudaFailure::Refused(format!(
            "a closure failed while it was captured: {}",
            fault.message
        )));
    }
    let graph = graph?;
    first.stream.upload_graph(&graph)?;
    Ok(graph)
}

/// The captures of one rank.
#[derive(Debug)]
pub(crate) struct CapturedGraphs {
    /// Those that contain NCCL transfers.
    all: Mutex<Vec<Weak<Mutex<Option<Graph>>>>>,
    keep_alive: Arc<KeepAlive>,
    /// The one being made.
    begun: Mutex<Option<CapturedGraph>>,
}

impl CapturedGraphs {
    pub(crate) fn new(keep_alive: KeepAlive) -> Self {
        Self { all: Mutex::default(), keep_alive: Arc::new(keep_alive), begun: Mutex::default() }
    }

    /// What is held for them.
    pub(crate) const fn keep_alive(&self) -> &Arc<KeepAlive> {
        &self.keep_alive
    }

    /// Before the first task of a capture is enqueued.
    pub(crate) fn begin(&self) {
        *lock(&self.begun) = Some(self.keep_alive.begin());
    }

    /// Makes one from what was captured, with transfers of these communicators; after a failure, none.
    ///
    /// # Errors
    /// Those of `graph`.
    pub(crate) fn end_one(
        &self,
        graph: Result<Graph, CudaFailure>,
        communicators: Vec<Arc<Communicator>>,
    ) -> Result<CudaGraph, CudaFailure> {
        let capture = lock(&self.begun).take().unwrap_or_else(|| self.keep_alive.begin());
        self.keep_alive.end();
        Ok(self.keep(graph?, communicators, capture))
    }

    fn keep(&self, graph: Graph, communicators: Vec<Arc<Communicator>>, capture: CapturedGraph) -> CudaGraph {
        let graph = Arc::new(Mutex::new(Some(graph)));
        let mut all = lock(&self.all);
        all.retain(|one| one.strong_count() > 0);
        if !communicators.is_empty() {
            all.push(Arc::downgrade(&graph));
        }
        CudaGraph { graph, communicators, capture }
    }

    /// Takes them all away.
    pub(crate) fn end(&self) {
        for graph in lock(&self.all).drain(..).filter_map(|one| one.upgrade()) {
            drop(lock(&graph).take());
        }
    }
}
