//! CUDA streams and events: in-order queues of a device, and what orders them.
//!
//! Laws:
//! - A stream runs in order and waits for no other except through [`Stream::wait`]: streams are made
//!   non-blocking, so the legacy stream of other libraries orders nothing here.
//! - **BK-2** Recording and waiting neither allocate nor wait on the host.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::address::DeviceAddress;
use super::context::Context;
use crate::failure::CudaFailure;
use crate::transport::strided_copy::StridedCopy;
use warpweft_backend::{Activity, Meter};

/// How urgent a stream's work is when streams compete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// After everything: what nothing waits for soon.
    Least,
    /// Before everything: products, and work that they wait for.
    Greatest,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    context: Arc<Context>,
    handle: sys::CUstream,
    /// What its calls are charged to.
    meter: Arc<Meter>,
}

// SAFETY: a stream handle is a name; the driver's calls on it are thread safe.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream whose calls are not charged to a meter.
    pub(crate) fn create(context: Arc<Context>, priority: Priority) -> Result<Self, CudaFailure> {
        Self::metered(context, priority, Arc::default())
    }

    /// A stream whose calls are charged to `meter`.
    pub(crate) fn metered(
        context: Arc<Context>,
        priority: Priority,
        meter: Arc<Meter>,
    ) -> Result<Self, CudaFailure> {
        context.make_current()?;
        let range = result::stream::get_priority_range();
        let (least, greatest) = range.map_err(CudaFailure::driver("cuCtxGetStreamPriorityRange"))?;
        let priority = match priority {
            Priority::Least => least,
            Priority::Greatest => greatest,
        };
        let handle = result::stream::create_with_priority(result::stream::StreamKind::NonBlocking, priority)
            .map_err(CudaFailure::driver("cuStreamCreateWithPriority"))?;
        Ok(Self { context, handle, meter })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) const fn handle(&self) -> sys::CUstream {
        self.handle
    }

    pub(crate) const fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Makes the stream's context the calling thread's.
    pub(crate) fn make_current(&self) -> Result<(), CudaFailure> {
        self.meter.driver(|| self.context.make_current())
    }

    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaFailure> {
        // SAFETY: both handles are alive, and belong to one context.
        self.meter
            .driver(|| unsafe { result::event::record(event.handle, self.handle) })
            .map_err(CudaFailure::driver("cuEventRecord"))
    }

    /// Records, on a stream that is being captured, a clock that is passed anew in every replay. It orders
    /// nothing.
    pub(crate) fn record_in_replays(&self, clock: &Event) -> Result<(), CudaFailure> {
        let flags = sys::CUevent_record_flags::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both handles are alive, and belong to one context.
        self.meter
            .driver(|| unsafe { sys::cuEventRecordWithFlags(clock.handle, self.handle, flags) })
            .result()
            .map_err(CudaFailure::driver("cuEventRecordWithFlags"))
    }

    pub(crate) fn wait(&self, event: &Event) -> Result<(), CudaFailure> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        self.meter
            .driver(|| unsafe { result::stream::wait_event(self.handle, event.handle, flags) })
            .map_err(CudaFailure::driver("cuStreamWaitEvent"))
    }

    /// Copies within this device, or into a peer's memory.
    pub(crate) fn copy(
        &self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        // SAFETY: callers pass ranges that were checked against their allocations when they were bound.
        self.meter
            .driver(|| unsafe { result::memcpy_dtod_async(to.number(), from.number(), bytes, self.handle) })
            .map_err(CudaFailure::driver("cuMemcpyDtoDAsync"))
    }

    /// Copies rows, which may go to a peer's memory.
    pub(crate) fn copy_rows(&self, rows: &StridedCopy) -> Result<(), CudaFailure> {
        let StridedCopy { from, to, bytes, count, from_pitch, to_pitch } = *rows;
        if count == 1 {
            return self.copy(from, to, bytes);
        }
        let copy = sys::CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: std::ptr::null(),
            srcDevice: from.number(),
            srcArray: std::ptr::null_mut(),
            srcPitch: from_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: to.number(),
            dstArray: std::ptr::null_mut(),
            dstPitch: to_pitch,
            WidthInBytes: bytes,
            Height: count,
        };
        // SAFETY: as for `copy`, of every row; the driver has read `copy` when it returns.
        self.meter
            .driver(|| unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, self.handle) })
            .result()
            .map_err(CudaFailure::driver("cuMemcpy2DAsync"))
    }

    /// Sets bytes to zero.
    pub(crate) fn zero(&self, to: DeviceAddress, bytes: usize) -> Result<(), CudaFailure> {
        // SAFETY: as for `copy`.
        self.meter
            .driver(|| unsafe { result::memset_d8_async(to.number(), 0, bytes, self.handle) })
            .map_err(CudaFailure::driver("cuMemsetD8Async"))
    }

    /// Copies from the host, and returns when the device has it.
    pub(crate) fn upload(&self, bytes: &[u8], to: DeviceAddress) -> Result<(), CudaFailure> {
        // SAFETY: `bytes` are borrowed until the copy has run, or until the driver says that the context runs
        // nothing any more.
        unsafe { self.begin_upload(bytes, to) }?;
        self.synchronize()
    }

    /// Begins a copy from the host, and waits for nothing.
    ///
    /// # Safety
    /// `bytes` stay where they are, unchanged, until the stream is done, or to the end of the process if that
    /// is never seen.
    pub(crate) unsafe fn begin_upload(&self, bytes: &[u8], to: DeviceAddress) -> Result<(), CudaFailure> {
        self.make_current()?;
        // SAFETY: the range was checked by the caller, who keeps `bytes` until the copy has run.
        self.meter
            .driver(|| unsafe { result::memcpy_htod_async(to.number(), bytes, self.handle) })
            .map_err(CudaFailure::driver("cuMemcpyHtoDAsync"))
    }

    /// Copies to the host, and returns when it is there.
    pub(crate) fn download(&self, from: DeviceAddress, bytes: &mut [u8]) -> Result<(), CudaFailure> {
        self.make_current()?;
        // SAFETY: the range was checked by the caller; `bytes` outlives the copy, which is waited for.
        self.meter
            .driver(|| unsafe { result::memcpy_dtoh_async(bytes, from.number(), self.handle) })
            .map_err(CudaFailure::driver("cuMemcpyDtoHAsync"))?;
        self.synchronize()
    }

    /// Begins a copy to pinned memory of the host, and waits for nothing.
    pub(crate) fn copy_to_host(
        &self,
        from: DeviceAddress,
        to: DeviceAddress,
        bytes: usize,
    ) -> Result<(), CudaFailure> {
        let host = to.number() as *mut std::ffi::c_void;
        // SAFETY: callers pass ranges that were checked against their allocations when they were bound, and keep both.
        self.meter
            .driver(|| unsafe { sys::cuMemcpyDtoHAsync_v2(host, from.number(), bytes, self.handle) })
            .result()
            .map_err(CudaFailure::driver("cuMemcpyDtoHAsync"))
    }

    /// Whether everything enqueued so far has run.
    pub(crate) fn is_done(&self) -> Result<bool, CudaFailure> {
        // SAFETY: the handle is alive.
        match unsafe { sys::cuStreamQuery(self.handle) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => other.result().map(|()| true).map_err(CudaFailure::driver("cuStreamQuery")),
        }
    }

    pub(crate) fn synchronize(&self) -> Result<(), CudaFailure> {
        // SAFETY: the handle is alive.
        self.meter
            .within(Activity::Waiting, || unsafe { result::stream::synchronize(self.handle) })
            .map_err(CudaFailure::driver("cuStreamSynchronize"))
    }

    /// From now on this thread's work on the stream is captured.
    pub(crate) fn begin_capture(&self) -> Result<(), CudaFailure> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the handle is alive.
        unsafe { result::stream::begin_capture(self.handle, mode) }
            .map_err(CudaFailure::driver("cuStreamBeginCapture"))
    }

    /// What was captured.
    pub(crate) fn end_capture(&self) -> Result<Graph, CudaFailure> {
        // SAFETY: the handle is alive and captures.
        let graph = unsafe { result::stream::end_capture(self.handle) }
            .map_err(CudaFailure::driver("cuStreamEndCapture"))?;
        if graph.is_null() {
            return Err(CudaFailure::Refused("the capture was invalidated and holds nothing".to_owned()));
        }
        // Without this every kernel runs at the priority of the stream that the graph is launched on.
        let priorities = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
        // SAFETY: the graph was just made and is destroyed below whatever happens.
        let executable = unsafe { result::graph::instantiate(graph, priorities) }
            .map_err(CudaFailure::driver("cuGraphInstantiate"));
        // SAFETY: an executable graph does not need the graph it was made from.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(Graph { context: Arc::clone(&self.context), executable: executable? })
    }

    /// Brings a captured step to the device, so that its first launch need not do it.
    pub(crate) fn upload_graph(&self, graph: &Graph) -> Result<(), CudaFailure> {
        // SAFETY: both handles are alive.
        unsafe { result::graph::upload(graph.executable, self.handle) }
            .map_err(CudaFailure::driver("cuGraphUpload"))?;
        self.synchronize()
    }

    pub(crate) fn launch(&self, graph: &Graph) -> Result<(), CudaFailure> {
        // SAFETY: both handles are alive.
        self.meter
            .driver(|| unsafe { result::graph::launch(graph.executable, self.handle) })
            .map_err(CudaFailure::driver("cuGraphLaunch"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: made once in `create`, destroyed once here; the driver finishes its work first.
            let _ = unsafe { result::stream::destroy(self.handle) };
        }
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    handle: sys::CUevent,
}

// SAFETY: an event handle is a name; the driver's calls on it are thread safe.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that orders and keeps no time.
    pub(crate) fn order(context: Arc<Context>) -> Result<Self, CudaFailure> {
        Self::create(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// An event that keeps the time it was passed.
    pub(crate) fn clock(context: Arc<Context>) -> Result<Self, CudaFailure> {
        Self::create(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn create(context: Arc<Context>, flags: sys::CUevent_flags) -> Result<Self, CudaFailure> {
        context.make_current()?;
        let handle = result::event::create(flags).map_err(CudaFailure::driver("cuEventCreate"))?;
        Ok(Self { context, handle })
    }

    /// Whether a stream has passed it since it was last recorded.
    pub(crate) fn is_passed(&self) -> bool {
        // SAFETY: the handle is alive.
        unsafe { result::event::query(self.handle) }.is_ok()
    }

    /// Nanoseconds from `earlier` to this event; `None` where one of the two has not been passed.
    pub(crate) fn since(&self, earlier: &Self) -> Option<f64> {
        // SAFETY: both handles are alive; events that were never recorded answer with an error.
        let milliseconds = unsafe { result::event::elapsed(earlier.handle, self.handle) }.ok()?;
        Some(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: made once in `create`, destroyed once here.
            let _ = unsafe { result::event::destroy(self.handle) };
        }
    }
}

/// A captured step, ready to be launched.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<Context>,
    executable: sys::CUgraphExec,
}

// SAFETY: an executable graph is a name that any thread may use, one at a time: it is owned by one value,
// which threads share only through a lock (`crate::graph::capture`).
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: made once in `end_capture`, destroyed once here.
            let _ = unsafe { result::graph::exec_destroy(self.executable) };
        }
    }
}
