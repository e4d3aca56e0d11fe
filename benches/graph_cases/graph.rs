//! A recording: captured from one stream, launched on it.

use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::at;

pub(crate) struct Graph {
    executable: sys::CUgraphExec,
    pub(crate) nodes: usize,
    pub(crate) instantiate: Duration,
}

impl Graph {
    /// Records what `enqueue` puts on `stream`, and on those that it forks to and joins again.
    ///
    /// # Errors
    /// The driver refuses something; capturing has ended then.
    pub(crate) fn record(
        stream: sys::CUstream,
        mode: sys::CUstreamCaptureMode,
        enqueue: impl FnOnce() -> Result<(), String>,
    ) -> Result<Self, String> {
        // SAFETY: the stream is kept until the process ends.
        unsafe { result::stream::begin_capture(stream, mode) }.map_err(at("cuStreamBeginCapture"))?;
        let enqueued = enqueue();
        // SAFETY: as above; the stream captures.
        let graph = unsafe { result::stream::end_capture(stream) };
        enqueued?;
        let graph = graph.map_err(at("cuStreamEndCapture"))?;
        if graph.is_null() {
            return Err("the recording was invalidated and holds nothing".to_owned());
        }
        let mut nodes = 0;
        // SAFETY: the graph was just made; without room for nodes the driver only counts them.
        unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes) }
            .result()
            .map_err(at("cuGraphGetNodes"))?;
        // As the library does: kernels keep the priorities of their streams.
        let priorities = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        let begin = Instant::now();
        // SAFETY: the graph is alive.
        let executable = unsafe { result::graph::instantiate(graph, priorities) };
        let instantiate = begin.elapsed();
        // SAFETY: an executable graph does not need the graph it was made from.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(Self { executable: executable.map_err(at("cuGraphInstantiate"))?, nodes, instantiate })
    }

    /// Brings the recording to the device of the stream, and waits: a first launch that had to could wait for
    /// ever, for a peer that already waits for this rank.
    pub(crate) fn upload(&self, stream: sys::CUstream) -> Result<(), String> {
        // SAFETY: both handles are alive.
        unsafe { result::graph::upload(self.executable, stream) }.map_err(at("cuGraphUpload"))?;
        // SAFETY: the stream is kept until the process ends.
        unsafe { result::stream::synchronize(stream) }.map_err(at("cuStreamSynchronize"))
    }

    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), String> {
        // SAFETY: both handles are alive.
        unsafe { result::graph::launch(self.executable, stream) }.map_err(at("cuGraphLaunch"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once here, run out by then. A failure changes nothing.
        let _ = unsafe { result::graph::exec_destroy(self.executable) };
    }
}
