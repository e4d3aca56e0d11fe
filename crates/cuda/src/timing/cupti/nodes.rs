//! The nodes that a task added to a capture.
//!
//! Law: a rank enqueues one task after the other, on one thread, and only that thread adds to its capture.
//! So what is in the graph after a task and was not there before belongs to the task, on whatever stream a
//! closure put it. The driver lists all nodes or none, with new ones last as far as was seen. This order is
//! used but not relied on: it lets each node be looked up once and not again for every task after it.

use std::collections::HashSet;
use std::ptr::null_mut;

use cudarc::driver::sys;

use crate::device::stream::Stream;
use crate::failure::CudaFailure;

/// The nodes of a capture so far, as addresses.
#[derive(Debug, Default)]
pub(super) struct CapturedGraph {
    known: HashSet<usize>,
    /// What the driver listed last.
    listed: Vec<sys::CUgraphNode>,
}

// SAFETY: the nodes are names, which only the driver follows.
unsafe impl Send for CapturedGraph {}

impl CapturedGraph {
    /// The nodes that were added since the last call.
    pub(super) fn added(&mut self, stream: &Stream) -> Result<Vec<sys::CUgraphNode>, CudaFailure> {
        let graph = graph_of(stream)?;
        let mut count = 0;
        // SAFETY: the graph is being captured by this thread; without a place for nodes they are only counted.
        unsafe { sys::cuGraphGetNodes(graph, null_mut(), &raw mut count) }
            .result()
            .map_err(CudaFailure::driver("cuGraphGetNodes"))?;
        if count == self.known.len() {
            return Ok(Vec::new());
        }
        self.listed.resize(count, null_mut());
        // SAFETY: as above, and there is room for that many.
        unsafe { sys::cuGraphGetNodes(graph, self.listed.as_mut_ptr(), &raw mut count) }
            .result()
            .map_err(CudaFailure::driver("cuGraphGetNodes"))?;
        self.listed.truncate(count);
        Ok(new(&self.listed, &mut self.known))
    }
}

/// Those of `listed` that are not known, which are known from now on. The number of known nodes is that of
/// known ones among the listed.
fn new(listed: &[sys::CUgraphNode], known: &mut HashSet<usize>) -> Vec<sys::CUgraphNode> {
    let last = listed.get(known.len()..).unwrap_or_default();
    if last.iter().all(|node| !known.contains(&node.addr())) {
        // As many as are new, and all of them are.
        known.extend(last.iter().map(|node| node.addr()));
        return last.to_vec();
    }
    listed.iter().copied().filter(|node| known.insert(node.addr())).collect()
}

/// The graph into which a stream captures.
fn graph_of(stream: &Stream) -> Result<sys::CUgraph, CudaFailure> {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut graph = null_mut();
    // SAFETY: the stream is alive; what is not requested may be null, and the two places outlive the call.
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
        return Err(CudaFailure::Refused("the lane does not capture".to_owned()));
    }
    Ok(graph)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(addresses: &[usize]) -> Vec<sys::CUgraphNode> {
        addresses.iter().map(|address| std::ptr::without_provenance_mut(*address)).collect()
    }

    #[test]
    fn the_nodes_that_came_are_found_wherever_the_driver_lists_them() {
        let mut known = HashSet::new();
        assert_eq!(new(&nodes(&[1, 2]), &mut known), nodes(&[1, 2]));
        assert_eq!(new(&nodes(&[1, 2, 3]), &mut known), nodes(&[3]), "last");
        assert_eq!(new(&nodes(&[4, 1, 2, 5, 3]), &mut known), nodes(&[4, 5]), "anywhere");
        assert_eq!(new(&nodes(&[3, 5, 2, 1, 4]), &mut known), [], "nowhere");
        assert_eq!(known.len(), 5);
    }
}
