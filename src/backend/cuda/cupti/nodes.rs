//! Which nodes of a recording a task added.
//!
//! Law: a rank enqueues one task after the other, on one thread, and only that thread adds to its recording. So what is in the graph
//! behind a task and was not there before is the task's, on whatever stream a closure put it.

use std::collections::HashSet;
use std::ptr::null_mut;

use cudarc::driver::sys;

use crate::backend::cuda::failure::CudaFailure;
use crate::backend::cuda::stream::Stream;

/// The nodes of a recording so far, as addresses.
#[derive(Debug, Default)]
pub(super) struct Recording {
    known: HashSet<usize>,
}

impl Recording {
    /// The nodes that came since this was asked last.
    pub(super) fn added(&mut self, stream: &Stream) -> Result<Vec<sys::CUgraphNode>, CudaFailure> {
        let graph = graph_of(stream)?;
        let mut count = 0;
        // SAFETY: the graph is being recorded by this thread; without a place for nodes they are only counted.
        unsafe { sys::cuGraphGetNodes(graph, null_mut(), &raw mut count) }
            .result()
            .map_err(CudaFailure::driver("cuGraphGetNodes"))?;
        if count == self.known.len() {
            return Ok(Vec::new());
        }
        let mut nodes = vec![null_mut(); count];
        // SAFETY: as above, and there is room for so many.
        unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &raw mut count) }
            .result()
            .map_err(CudaFailure::driver("cuGraphGetNodes"))?;
        nodes.truncate(count);
        Ok(nodes.into_iter().filter(|node| self.known.insert(node.addr())).collect())
    }
}

/// The graph into which a stream records.
fn graph_of(stream: &Stream) -> Result<sys::CUgraph, CudaFailure> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut graph = null_mut();
    // SAFETY: the stream is alive; what is not asked for may be null, and the two places outlive the call.
    unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.handle(),
            &raw mut status,
            null_mut(),
            &raw mut graph,
            null_mut(),
            null_mut(),
            null_mut(),
        )
    }
    .result()
    .map_err(CudaFailure::driver("cuStreamGetCaptureInfo"))?;
    if graph.is_null() || status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Err(CudaFailure::Refused("the lane does not record".to_owned()));
    }
    Ok(graph)
}
