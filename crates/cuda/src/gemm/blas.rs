//! cuBLASLt on one GPU for one lane: a handle, its workspace, scratch memory.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use cudarc::cublaslt::{result, sys};
use cudarc::driver::result::memcpy_dtod_async;

use super::lent::{Lent, LentMut};
use crate::compute_capability::ComputeCapability;
use crate::device::address::DeviceAddress;
use crate::device::context::{Context, DeviceOrdinal};
use crate::device::libraries::Library;
use crate::device::memory::DeviceMemory;
use crate::device::stream::{Priority, Stream};
use crate::failure::CudaFailure;
use crate::graph::keep_alive::KeepAlive;
use crate::kernels::Kernels;
use crate::kernels::cache::KernelCache;
use crate::surface::CudaHandles;

/// NVIDIA's advice for Hopper; older GPUs take less.
const WORKSPACE_BYTES: usize = 32 << 20;

/// What scales of blocks must be aligned to, and the alignment to which a single scale is copied
/// ([`Blas::aligned`]).
pub(super) const SCALE_ALIGNMENT: u64 = 16;

/// One GPU's products, for one lane: products that share a workspace must follow one another.
#[derive(Debug)]
pub(crate) struct Blas {
    tools: Arc<Tools>,
    /// Zeroes memory when it is made, and nothing else.
    setup: Stream,
    capability: ComputeCapability,
    pub(super) context: Arc<Context>,
    /// The lane's stream, known from its first work on.
    stream: Cell<Option<cudarc::driver::sys::CUstream>>,
    session: Session,
}

/// What products and captures of them use.
#[derive(Debug)]
struct Tools {
    handle: Handle,
    /// Before the memory, which keeps their context.
    kernels: Kernels,
    workspace: DeviceMemory,
    /// A place for the scale of each factor.
    scales: DeviceMemory,
}

#[derive(Debug)]
struct Handle(sys::cublasLtHandle_t);

// SAFETY: a handle is a name; cuBLASLt's calls with one are thread safe.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The session that the lane belongs to, known from its first work in a call on.
type Session = Arc<OnceLock<Served>>;

#[derive(Debug)]
struct Served {
    /// What is held for its captures.
    keep_alive: Arc<KeepAlive>,
    /// The number of captures that began before the first work.
    too_early: u64,
}

impl Served {
    fn by(keep_alive: &Arc<KeepAlive>) -> Self {
        Self { keep_alive: Arc::clone(keep_alive), too_early: keep_alive.too_early() }
    }
}

impl Blas {
    /// Opens the GPU and makes its primary context current on this thread.
    ///
    /// # Errors
    /// [`CudaFailure`] without driver, compiler, cuBLASLt or such a device.
    pub(crate) fn open(ordinal: DeviceOrdinal) -> Result<Self, CudaFailure> {
        let capability = ordinal.compute_capability()?;
        Library::Products.open()?;
        let context = Arc::new(Context::retain(ordinal)?);
        context.make_current()?;
        let kernels = Kernels::for_current_context(KernelCache::of_user())?;
        let setup = Stream::create(Arc::clone(&context), Priority::Least)?;
        let workspace = DeviceMemory::zeroed(&context, &setup, WORKSPACE_BYTES)?;
        let scales = DeviceMemory::zeroed(&context, &setup, 2 * SCALE_ALIGNMENT as usize)?;
        let handle = result::create_handle().map_err(CudaFailure::products("cublasLtCreate"))?;
        let tools = Arc::new(Tools { handle: Handle(handle), workspace, scales, kernels });
        let (stream, session) = (Cell::new(None), Session::default());
        Ok(Self { tools, setup, capability, context, stream, session })
    }

    pub(crate) const fn capability(&self) -> ComputeCapability {
        self.capability
    }

    pub(super) fn kernels(&self) -> &Kernels {
        &self.tools.kernels
    }

    pub(super) fn handle(&self) -> sys::cublasLtHandle_t {
        self.tools.handle.0
    }

    pub(super) fn workspace(&self) -> &DeviceMemory {
        &self.tools.workspace
    }

    /// Memory in which work of this lane leaves things.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Scratch, CudaFailure> {
        self.memory(bytes).map(Scratch)
    }

    /// Zeroed memory, which captures of the lane outlive.
    pub(super) fn memory(&self, bytes: usize) -> Result<LaneMemory, CudaFailure> {
        let memory = Arc::new(DeviceMemory::zeroed(&self.context, &self.setup, bytes)?);
        let too_early = self.session.get().map(|served| served.keep_alive.too_early());
        Ok(LaneMemory { memory, too_early, session: Arc::clone(&self.session) })
    }

    /// For work that uses the workspace or scratch: refuses handles of another GPU or of another lane than
    /// before, and makes the GPU's context current.
    pub(super) fn check(&self, handles: &CudaHandles) -> Result<(), CudaFailure> {
        self.check_device(handles)?;
        let before = self.stream.get().unwrap_or(handles.stream());
        self.stream.set(Some(before));
        match before == handles.stream() {
            false => Err(CudaFailure::Refused(format!(
                "a product of {} was given another stream than the one before, which may still use its workspace; \
                 open a device for each lane",
                self.context.ordinal()
            ))),
            true => Ok(()),
        }
    }

    /// Where a product finds the one scale of its first or `second` factor: in place, or at a copy in this
    /// lane's own place. Scales of whole weights lie in a row of f32, and cuBLASLt refused a product in a
    /// session of several such weights where it had taken each product alone; the difference is where the
    /// scale begins. Products of a lane follow one another, so the next one's copy waits until this one has
    /// read its own.
    pub(super) fn aligned(
        &self,
        handles: &CudaHandles,
        second: bool,
        scale: DeviceAddress,
    ) -> Result<DeviceAddress, CudaFailure> {
        if scale.number().is_multiple_of(SCALE_ALIGNMENT) {
            return Ok(scale);
        }
        let place = self.tools.scales.address().plus(SCALE_ALIGNMENT as usize * usize::from(second));
        let bytes = size_of::<f32>();
        // SAFETY: the caller checked the scale; the place is this value's, and what reads it runs on this
        // stream before what writes it next.
        handles
            .driver(|| unsafe { memcpy_dtod_async(place.number(), scale.number(), bytes, handles.stream()) })
            .map_err(CudaFailure::driver("cuMemcpyDtoDAsync"))?;
        Ok(place)
    }

    /// For work that touches only its operands: refuses handles of another GPU or of another session than
    /// before, and makes the GPU's context current.
    pub(super) fn check_device(&self, handles: &CudaHandles) -> Result<(), CudaFailure> {
        if handles.device() != self.context.ordinal() {
            return Err(CudaFailure::Refused(format!(
                "a product of {} was given the stream of {}; open a device for each rank in its closure's factory",
                self.context.ordinal(),
                handles.device()
            )));
        }
        if let Some(keep_alive) = handles.keep_alive()
            && !Arc::ptr_eq(&self.session.get_or_init(|| Served::by(keep_alive)).keep_alive, keep_alive)
        {
            return Err(CudaFailure::Refused(format!(
                "a layer of {} was given handles of another rank or session than before, whose captures may \
                 still use its memory; open a device for each in its closure's factory",
                self.context.ordinal()
            )));
        }
        handles.driver(|| self.make_current())
    }

    /// Makes the GPU's context current on this thread.
    pub(super) fn make_current(&self) -> Result<(), CudaFailure> {
        self.context.make_current()
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if let Some(served) = self.session.get() {
            served.keep_alive.outlive(&(Arc::clone(&self.tools) as _), served.too_early);
        }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        if self.workspace.make_current().is_ok() {
            // SAFETY: made once in `Blas::open`, destroyed once here; products hold what is dropped.
            let _ = unsafe { result::destroy_handle(self.handle.0) };
        }
    }
}

/// Memory that a lane's work uses, and captures of that work (RH-1).
#[derive(Debug)]
pub(super) struct LaneMemory {
    memory: Arc<DeviceMemory>,
    /// The number of captures that began before it was made, if its lane was known then.
    too_early: Option<u64>,
    session: Session,
}

impl LaneMemory {
    pub(super) fn address(&self) -> DeviceAddress {
        self.memory.address()
    }

    pub(super) fn bytes(&self) -> usize {
        self.memory.bytes()
    }
}

impl Drop for LaneMemory {
    fn drop(&mut self) {
        if let Some(served) = self.session.get() {
            let too_early = self.too_early.unwrap_or(served.too_early);
            served.keep_alive.outlive(&(Arc::clone(&self.memory) as _), too_early);
        }
    }
}

/// Memory of a layer's own, zeroed when it was made.
#[derive(Debug)]
pub(crate) struct Scratch(LaneMemory);

impl Scratch {
    pub(crate) fn read(&self) -> Lent<'_> {
        Lent::new(self.0.address(), self.0.bytes())
    }

    pub(crate) fn write(&mut self) -> LentMut<'_> {
        LentMut::new(self.0.address(), self.0.bytes())
    }
}
