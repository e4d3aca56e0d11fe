//! The owner of CUPTI: subscribed, its activities on, and off again.
//!
//! Laws:
//! - What was turned on is turned off, in whatever order making it failed or it is dropped. If a GPU was
//!   abandoned, it is left on instead, to the end of the process: it has not been seen whether CUPTI, asked to
//!   give back what is out, waits for a stream that waits for ever. No other world gets CUPTI then.
//! - Only a library whose records are known is used: that of CUDA 12, or a later one, whose records grew at
//!   their end.
//! - What CUPTI was given lives as long as the process: nothing says that a thread is no longer inside a
//!   callback when the subscription ends. It is a few words for each world that had CUPTI, emptied at the
//!   end.
//! - **CU-1** A node of a launched graph is a clone of the node that was captured; CUPTI says so while the
//!   graph is made ready, and both stand for the same task.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cudarc::cupti::result::CuptiError;
use cudarc::cupti::sys;
use cudarc::driver::sys::CUgraphNode;

use super::attribution::{Attributed, ahead};
use super::buffers::{Claim, completed, requested};
use super::meeting::Meeting;
use super::place::Place;
use super::record::{Record, WHOSE};
use crate::device::context::Context;
use crate::device::libraries::Library;
use crate::failure::CudaFailure;
use warpweft_backend::bell::lock;
use warpweft_backend::clock::Clock;

/// What CUPTI reports. Calls of driver and run time are requested because ids of tasks come only with
/// them.
const KINDS: [sys::CUpti_ActivityKind; 7] = {
    use sys::CUpti_ActivityKind as Kind;
    [
        Kind::CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY,
        Kind::CUPTI_ACTIVITY_KIND_MEMCPY2,
        Kind::CUPTI_ACTIVITY_KIND_MEMSET,
        Kind::CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
        Kind::CUPTI_ACTIVITY_KIND_DRIVER,
        Kind::CUPTI_ACTIVITY_KIND_RUNTIME,
    ]
};

/// Calls of the driver that a step makes often and that enqueue no activity: they are not reported.
const QUIET: [sys::CUpti_driver_api_trace_cbid; 10] = {
    use sys::CUpti_driver_api_trace_cbid_enum as Call;
    [
        Call::CUPTI_DRIVER_TRACE_CBID_cuStreamQuery,
        Call::CUPTI_DRIVER_TRACE_CBID_cuEventQuery,
        Call::CUPTI_DRIVER_TRACE_CBID_cuEventRecord,
        Call::CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags,
        Call::CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent,
        Call::CUPTI_DRIVER_TRACE_CBID_cuCtxSetCurrent,
        Call::CUPTI_DRIVER_TRACE_CBID_cuCtxGetCurrent,
        Call::CUPTI_DRIVER_TRACE_CBID_cuStreamBatchMemOp,
        Call::CUPTI_DRIVER_TRACE_CBID_cuStreamBatchMemOp_v2,
        Call::CUPTI_DRIVER_TRACE_CBID_cuStreamIsCapturing,
    ]
};

/// How often two clocks are compared.
const SAMPLES: usize = 8;

/// CUPTI, as one world of this process has it.
#[derive(Debug)]
pub(crate) struct Profiler {
    subscriber: Subscriber,
    /// The contexts of every rank of this process.
    contexts: Vec<Arc<Context>>,
    nodes: &'static Nodes,
    books: AtomicU32,
    meeting: Meeting<Step>,
    /// Ended after everything else.
    claim: Claim,
}

/// The tasks of all nodes of captures.
type Nodes = Mutex<HashMap<u64, Place>>;

/// What all ranks of this process did in a step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) attributed: Attributed,
    /// Nanoseconds that CUPTI's clock is ahead of the world's.
    pub(super) ahead: i128,
}

impl Profiler {
    /// CUPTI for a world with these contexts in this process, one for each of its ranks.
    ///
    /// # Errors
    /// [`CudaFailure::Library`] without the library, [`CudaFailure::Refused`] while another world of this process
    /// has it, or where it is too old, [`CudaFailure::Call`] where it refuses, because of another profiler for
    /// instance.
    pub(crate) fn start(contexts: Vec<Arc<Context>>) -> Result<Arc<Self>, CudaFailure> {
        Library::Profiler.open()?;
        known(version()?)?;
        let taken = || {
            CudaFailure::Refused(
                "another session of this process has CUPTI, or had it when a GPU was abandoned".to_owned(),
            )
        };
        let claim = Claim::make().ok_or_else(taken)?;
        let nodes: &'static Nodes = Box::leak(Box::default());
        let subscriber = Subscriber::new(nodes)?;
        // SAFETY: both functions keep what CUPTI requires of them.
        unsafe { sys::cuptiActivityRegisterCallbacks(Some(requested), Some(completed)) }
            .result()
            .map_err(CudaFailure::profiler("cuptiActivityRegisterCallbacks"))?;
        for kind in KINDS {
            // SAFETY: the library is there; it may be called before and after contexts are made.
            unsafe { sys::cuptiActivityEnable(kind) }
                .result()
                .map_err(CudaFailure::profiler("cuptiActivityEnable"))?;
        }
        for call in QUIET {
            // SAFETY: as above. A library that does not know the call reports it, which costs time and
            // nothing else.
            let _ = unsafe { sys::cuptiActivityEnableDriverApi(call as u32, 0) };
        }
        let meeting = Meeting::new(contexts.len());
        Ok(Arc::new(Self { subscriber, contexts, nodes, books: AtomicU32::new(1), meeting, claim }))
    }

    /// A number for another bound plan.
    pub(crate) fn number(&self) -> u32 {
        self.books.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on these nodes, and what is cloned from them, stand for a task.
    pub(super) fn note(&self, nodes: &[CUgraphNode], place: Place) -> Result<(), CudaFailure> {
        for node in nodes {
            let id = id(*node).map_err(CudaFailure::profiler("cuptiGetGraphNodeId"))?;
            lock(self.nodes).insert(id, place);
        }
        Ok(())
    }

    /// Forgets the nodes of a bound plan.
    pub(super) fn forget(&self, book: u32) {
        lock(self.nodes).retain(|_, place| place.book != book);
    }

    /// Runs `work`; what it enqueues from this thread is reported as belonging to `place`.
    pub(super) fn mark<T>(&self, place: Place, work: impl FnOnce() -> T) -> T {
        // SAFETY: the library is there. Ids lie on a stack of this thread.
        let pushed = unsafe { sys::cuptiActivityPushExternalCorrelationId(WHOSE, place.id()) };
        let done = work();
        if pushed.result().is_ok() {
            let mut last = 0;
            // SAFETY: as above; `last` outlives the call.
            let _ = unsafe { sys::cuptiActivityPopExternalCorrelationId(WHOSE, &raw mut last) };
        }
        done
    }

    /// What all ranks of this process did, once all of them are here with their lanes drained.
    pub(super) fn meet(
        &self,
        clock: Clock,
        deadline: Duration,
        ended: impl Fn() -> bool,
    ) -> Option<Arc<Step>> {
        self.meeting.meet(deadline, ended, || self.read(clock))
    }

    fn read(&self, clock: Clock) -> Step {
        let _span = tracing::trace_span!("read activities").entered();
        // SAFETY: the library is there. Everything of this world has run, so no record of it is cut short.
        let _ = unsafe { sys::cuptiActivityFlushAll(FORCED) };
        let mut records = Vec::new();
        for mut buffer in self.claim.filled() {
            let (begin, bytes) = buffer.records();
            let mut record = null_mut();
            // SAFETY: the buffer is one that CUPTI gave back, with that many bytes of records; a record it
            // names lies in it.
            unsafe {
                while sys::cuptiActivityGetNextRecord(begin, bytes, &raw mut record).result().is_ok() {
                    records.extend(Record::read(record.cast()));
                }
            }
        }
        let nodes = lock(self.nodes);
        let attributed = Attributed::of(&records, &nodes);
        tracing::trace!(
            records = records.len(),
            nodes = nodes.len(),
            of_nobody = attributed.of_nobody,
            unfinished = attributed.unfinished,
            "activities"
        );
        drop(nodes);
        let samples: Vec<_> = (0..SAMPLES).filter_map(|_| sample(clock)).collect();
        Step { attributed, ahead: ahead(&samples) }
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if self.contexts.iter().any(|context| context.is_abandoned()) {
            self.subscriber.is_left = true;
            self.claim.leave();
        }
    }
}

/// The oldest version of the library that is used, by the library's own count: that of CUDA 12.0.
const OLDEST: u32 = 18;

/// The library's version, by its own count.
fn version() -> Result<u32, CudaFailure> {
    let mut version = 0;
    // SAFETY: the library is there, and `version` outlives the call.
    unsafe { sys::cuptiGetVersion(&raw mut version) }
        .result()
        .map_err(CudaFailure::profiler("cuptiGetVersion"))?;
    Ok(version)
}

/// Checks that records of this version are known.
fn known(version: u32) -> Result<(), CudaFailure> {
    if version >= OLDEST {
        return Ok(());
    }
    Err(CudaFailure::Refused(format!(
        "the profiler (libcupti) is of version {version}, and {OLDEST} is needed; put that of CUDA 12 or later on LD_LIBRARY_PATH"
    )))
}

/// Returns records that are incomplete too.
const FORCED: u32 = 1;

/// The world's clock, CUPTI's, and the world's again.
fn sample(clock: Clock) -> Option<(u64, u64, u64)> {
    let mut theirs = 0;
    let before = clock.now();
    // SAFETY: the library is there, and `theirs` outlives the call.
    unsafe { sys::cuptiGetTimestamp(&raw mut theirs) }.result().ok()?;
    Some((before, theirs, clock.now()))
}

/// The number that CUPTI gives a node.
fn id(node: CUgraphNode) -> Result<u64, CuptiError> {
    let mut id = 0;
    // SAFETY: the node is one of a graph that is alive, and `id` outlives the call.
    unsafe { sys::cuptiGetGraphNodeId(node, &raw mut id) }.result().map(|()| id)
}

/// A subscription. A process has one, so another profiler is noticed; and it tells of clones. At its end all
/// activities are off.
#[derive(Debug)]
struct Subscriber {
    handle: sys::CUpti_SubscriberHandle,
    nodes: &'static Nodes,
    /// Whether nothing is turned off at its end.
    is_left: bool,
}

// SAFETY: the handle is a name; CUPTI's calls on it are thread safe.
unsafe impl Send for Subscriber {}
// SAFETY: as above.
unsafe impl Sync for Subscriber {}

impl Subscriber {
    fn new(nodes: &'static Nodes) -> Result<Self, CudaFailure> {
        let mut handle = null_mut();
        let told = (&raw const *nodes).cast_mut().cast::<c_void>();
        // SAFETY: `cloned` takes `told` for what it is, and it is never freed.
        unsafe { sys::cuptiSubscribe(&raw mut handle, Some(cloned), told) }
            .result()
            .map_err(CudaFailure::profiler("cuptiSubscribe"))?;
        let subscriber = Self { handle, nodes, is_left: false };
        let domain = sys::CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RESOURCE;
        // SAFETY: the handle was just made.
        unsafe { sys::cuptiEnableCallback(1, handle, domain, CLONED) }
            .result()
            .map_err(CudaFailure::profiler("cuptiEnableCallback"))?;
        Ok(subscriber)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        *lock(self.nodes) = HashMap::new();
        if self.is_left {
            return;
        }
        for kind in KINDS {
            // SAFETY: the library is there.
            let _ = unsafe { sys::cuptiActivityDisable(kind) };
        }
        // SAFETY: subscribed once in `new`, unsubscribed once here; flushing takes back what buffers are out.
        unsafe {
            let _ = sys::cuptiActivityFlushAll(FORCED);
            let _ = sys::cuptiUnsubscribe(self.handle);
        }
        // Of what was cloned meanwhile.
        *lock(self.nodes) = HashMap::new();
    }
}

/// A node of a capture was cloned.
const CLONED: u32 = sys::CUpti_CallbackIdResource::CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED as u32;

/// Notes that a clone stands for the same task as its original.
///
/// # Safety
/// For CUPTI alone: `told` is the map of the subscription, and `data` what belongs to the callback. Only the
/// domain of resources is subscribed to, so `domain` is one that is known here.
unsafe extern "C" fn cloned(
    told: *mut c_void,
    domain: sys::CUpti_CallbackDomain,
    callback: sys::CUpti_CallbackId,
    data: *const c_void,
) {
    if domain != sys::CUpti_CallbackDomain::CUPTI_CB_DOMAIN_RESOURCE || callback != CLONED || data.is_null() {
        return;
    }
    let resource = data.cast::<sys::CUpti_ResourceData>();
    // SAFETY: for this callback CUPTI passes such a structure, alive during the call.
    let graph = unsafe { (&raw const (*resource).resourceDescriptor).read() }.cast::<sys::CUpti_GraphData>();
    if graph.is_null() {
        return;
    }
    // SAFETY: it names another such structure, alive as long. Its fields are read one by one, as one of them
    // says what kind of node it is, and there may be kinds to come; `told` is what `Subscriber::new` passed.
    let (nodes, original, clone) = unsafe {
        let (original, clone) = (&raw const (*graph).originalNode, &raw const (*graph).node);
        (&*told.cast::<Nodes>(), original.read(), clone.read())
    };
    if let (Ok(original), Ok(clone)) = (id(original), id(clone)) {
        let mut nodes = lock(nodes);
        if let Some(place) = nodes.get(&original).copied() {
            nodes.insert(clone, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_from_before_cuda_12_is_refused_and_a_later_one_is_not() {
        let refusal = known(17).unwrap_err().to_string();
        assert!(refusal.contains("version 17") && refusal.contains("CUDA 12"), "{refusal}");
        for version in [18, 28, 130_001] {
            known(version).unwrap();
        }
    }
}
