//! One GPU of one rank: memory, kernels, products.
//!
//! Laws:
//! - Every operand of a launch or product is given with the number of elements it touches there, and is checked
//!   against the span's length; `kernels.cu` promises to touch no others.
//! - Once a device is open and its buffers are made, nothing here allocates or waits.
//! - A handle is used on the thread that made it: a device is neither `Send` nor `Sync`.
#![allow(unsafe_code, reason = "the CUDA driver and cuBLAS are C libraries")]

use std::cell::Cell;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::panic::catch_unwind;
use std::rc::Rc;

use bytemuck::Pod;
use cudarc::cublas::{result as cublas, sys as cublas_sys};
use cudarc::driver::{result as driver, sys};

use super::compile::{Architecture, Cubin};
use super::failure::Failure;
use super::span::{Matrix, Span, SpanMut};

/// Threads of a block; `kernels.cu` says the same.
const THREADS: usize = 128;
/// Shared memory every architecture gives a block without being asked, less what the kernels take themselves.
const SHARED_BYTES: usize = 46 << 10;
/// cuBLAS's advice for Hopper; other architectures take less.
const WORKSPACE_BYTES: usize = 32 << 20;
/// More operands than any kernel has.
const OPERANDS: usize = 12;

/// A library the example opens at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    /// `libcuda`.
    Driver,
    /// `libnvrtc`.
    Compiler,
    /// `libcublas`.
    Blas,
}

impl Library {
    /// Must be asked before the library's first call: the binding panics on a missing one.
    ///
    /// # Errors
    /// [`Failure::Missing`].
    pub(crate) fn open(self) -> Result<(), Failure> {
        let (library, advice) = match self {
            Self::Driver => ("the CUDA driver (libcuda)", "install NVIDIA's driver, or say --device cpu"),
            Self::Compiler => {
                ("the kernel compiler (libnvrtc)", "install CUDA's NVRTC and put it on LD_LIBRARY_PATH")
            }
            Self::Blas => ("cuBLAS (libcublas)", "install it with CUDA and put it on LD_LIBRARY_PATH"),
        };
        // SAFETY: opening a library runs its initializers; these are NVIDIA's own, made to be opened.
        let present = catch_unwind(|| unsafe {
            match self {
                Self::Driver => sys::is_culib_present(),
                Self::Compiler => cudarc::nvrtc::sys::is_culib_present(),
                Self::Blas => cublas_sys::is_culib_present(),
            }
        });
        if present.unwrap_or(false) { Ok(()) } else { Err(Failure::Missing { library, advice }) }
    }
}

/// The GPUs of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpus(Vec<(String, Architecture)>);

impl Gpus {
    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Name and architecture of one.
    ///
    /// # Errors
    /// [`Failure::NoDevice`].
    pub(crate) fn of(&self, ordinal: u32) -> Result<&(String, Architecture), Failure> {
        let found = self.count();
        self.0.get(ordinal as usize).ok_or(Failure::NoDevice { ordinal, found })
    }
}

/// Looks for GPUs, and for the libraries the example needs on them.
///
/// # Errors
/// [`Failure::Missing`] and [`Failure::Refused`], the latter also where a driver has no GPU.
pub(crate) fn gpus() -> Result<Gpus, Failure> {
    for library in [Library::Driver, Library::Compiler, Library::Blas] {
        library.open()?;
    }
    driver::init().map_err(refused("cuInit"))?;
    let count = driver::device::get_count().map_err(refused("cuDeviceGetCount"))?;
    (0..count)
        .map(|ordinal| {
            let device = driver::device::get(ordinal).map_err(refused("cuDeviceGet"))?;
            let name = driver::device::get_name(device).map_err(refused("cuDeviceGetName"))?;
            Ok((name, architecture(device)?))
        })
        .collect::<Result<_, _>>()
        .map(Gpus)
}

fn architecture(device: sys::CUdevice) -> Result<Architecture, Failure> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let number = |attribute| {
        // SAFETY: the driver gave out this device.
        let number = unsafe { driver::device::get_attribute(device, attribute) };
        number.map(i32::unsigned_abs).map_err(refused("cuDeviceGetAttribute"))
    };
    Ok(Architecture { major: number(MAJOR)?, minor: number(MINOR)? })
}

/// A device's primary context, kept while anything on the device lives.
struct Context(sys::CUdevice);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `Device::open`. A refusal leaves nothing to be done.
        let _ = unsafe { driver::primary_ctx::release(self.0) };
    }
}

/// Memory of the example's own on the device; freed with its owner.
pub(crate) struct Buffer<T> {
    address: sys::CUdeviceptr,
    len: usize,
    context: Rc<Context>,
    elements: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// All elements, to be read.
    pub(crate) fn read(&self) -> Span<'_, T> {
        Span { address: self.address, len: self.len, lent: PhantomData }
    }

    /// All elements, to be written.
    pub(crate) fn write(&mut self) -> SpanMut<'_, T> {
        SpanMut { address: self.address, len: self.len, lent: PhantomData }
    }

    /// Waits for the whole device and copies the elements out: for tests, a step never does.
    #[cfg(test)]
    pub(crate) fn download(&self) -> Result<Vec<T>, Failure> {
        driver::ctx::synchronize().map_err(refused("cuCtxSynchronize"))?;
        let mut values = vec![T::zeroed(); self.len];
        // SAFETY: the buffer holds `len` elements, any bytes are a `T`, and the device is idle.
        unsafe { driver::memcpy_dtoh_sync(&mut values, self.address) }.map_err(refused("cuMemcpyDtoH"))?;
        Ok(values)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let _kept_until_freed = &self.context;
        // SAFETY: allocated once by `Device::buffer`; freeing waits for the device, so no kernel still uses it.
        let _ = unsafe { driver::free_sync(self.address) };
    }
}

/// The kernels of `kernels.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kernel {
    Embed,
    EmbedBackward,
    Normalize,
    NormalizeBackward,
    GainBackward,
    Gelu,
    GeluBackward,
    Rotate,
    AttentionForward,
    AttentionBackwardQueries,
    AttentionBackwardKeys,
    CrossEntropy,
    MeanOf,
}

impl Kernel {
    /// All, in the order of their declaration.
    pub(crate) const ALL: [Self; 13] = [
        Self::Embed,
        Self::EmbedBackward,
        Self::Normalize,
        Self::NormalizeBackward,
        Self::GainBackward,
        Self::Gelu,
        Self::GeluBackward,
        Self::Rotate,
        Self::AttentionForward,
        Self::AttentionBackwardQueries,
        Self::AttentionBackwardKeys,
        Self::CrossEntropy,
        Self::MeanOf,
    ];

    /// Its name in `kernels.cu`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::EmbedBackward => "embed_backward",
            Self::Normalize => "normalize",
            Self::NormalizeBackward => "normalize_backward",
            Self::GainBackward => "gain_backward",
            Self::Gelu => "gelu",
            Self::GeluBackward => "gelu_backward",
            Self::Rotate => "rotate",
            Self::AttentionForward => "attention_forward",
            Self::AttentionBackwardQueries => "attention_backward_queries",
            Self::AttentionBackwardKeys => "attention_backward_keys",
            Self::CrossEntropy => "cross_entropy",
            Self::MeanOf => "mean_of",
        }
    }
}

/// One GPU, with kernels loaded and cuBLAS ready.
pub(crate) struct Device {
    functions: Vec<sys::CUfunction>,
    blas: cublas_sys::cublasHandle_t,
    module: sys::CUmodule,
    stream: Cell<sys::CUstream>,
    workspace: Buffer<u8>,
    context: Rc<Context>,
}

impl Device {
    /// Opens GPU `ordinal` on this thread and makes its primary context current.
    ///
    /// # Errors
    /// Whatever a library refuses.
    pub(crate) fn open(ordinal: u32, code: &Cubin) -> Result<Self, Failure> {
        Library::Driver.open()?;
        Library::Blas.open()?;
        driver::init().map_err(refused("cuInit"))?;
        let number = c_int::try_from(ordinal).map_err(|_| Failure::NoDevice { ordinal, found: 0 })?;
        let device = driver::device::get(number).map_err(refused("cuDeviceGet"))?;
        // SAFETY: the driver gave out this device; the context is released by `Context`.
        let handle =
            unsafe { driver::primary_ctx::retain(device) }.map_err(refused("cuDevicePrimaryCtxRetain"))?;
        let context = Rc::new(Context(device));
        // SAFETY: the context was retained above.
        unsafe { driver::ctx::set_current(handle) }.map_err(refused("cuCtxSetCurrent"))?;
        let workspace = allocate(&context, WORKSPACE_BYTES)?;
        let blas = cublas::create_handle().map_err(refused_product("cublasCreate"))?;
        let mut opened = Self {
            functions: Vec::new(),
            blas,
            module: std::ptr::null_mut(),
            stream: Cell::new(driver::stream::null()),
            workspace,
            context,
        };
        // Plain f32 arithmetic whatever the environment says: no TF32, no emulation.
        // SAFETY: the handle was made above.
        unsafe { cublas_sys::cublasSetMathMode(blas, cublas_sys::cublasMath_t::CUBLAS_PEDANTIC_MATH) }
            .result()
            .map_err(refused_product("cublasSetMathMode"))?;
        // SAFETY: the code is a whole cubin, as NVRTC made it.
        opened.module = unsafe { driver::module::load_data(code.bytes().as_ptr().cast()) }
            .map_err(refused("cuModuleLoadData"))?;
        for kernel in Kernel::ALL {
            let name = CString::new(kernel.name()).unwrap_or_default();
            // SAFETY: the module was loaded above and is unloaded with `opened`.
            let function = unsafe { driver::module::get_function(opened.module, name) };
            opened.functions.push(function.map_err(refused("cuModuleGetFunction"))?);
        }
        opened.point_products()?;
        Ok(opened)
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeros<T: Pod>(&self, len: usize) -> Result<Buffer<T>, Failure> {
        self.upload(&vec![T::zeroed(); len])
    }

    /// A buffer that holds `values`.
    pub(crate) fn upload<T: Pod>(&self, values: &[T]) -> Result<Buffer<T>, Failure> {
        let buffer = allocate(&self.context, values.len())?;
        // SAFETY: the buffer was allocated for as many elements.
        unsafe { driver::memcpy_htod_sync(buffer.address, values) }.map_err(refused("cuMemcpyHtoD"))?;
        // The copy may still be under way when the call returns, and our streams do not wait for it.
        driver::ctx::synchronize().map_err(refused("cuCtxSynchronize"))?;
        Ok(buffer)
    }

    /// From now on work is enqueued on `stream`, a stream of this device.
    pub(crate) fn work_on(&self, stream: sys::CUstream) -> Result<(), Failure> {
        if self.stream.replace(stream) != stream { self.point_products() } else { Ok(()) }
    }

    /// cuBLAS on the stream at hand. Setting a stream takes the workspace away, so it is given again.
    fn point_products(&self) -> Result<(), Failure> {
        // SAFETY: handle and workspace live as long as `self`; the stream is the backend's, and outlives the call.
        unsafe {
            cublas::set_stream(self.blas, self.stream.get().cast())
                .map_err(refused_product("cublasSetStream"))?;
            cublas_sys::cublasSetWorkspace_v2(
                self.blas,
                self.workspace.address as *mut c_void,
                WORKSPACE_BYTES,
            )
            .result()
            .map_err(refused_product("cublasSetWorkspace"))
        }
    }

    /// `target = source`.
    pub(crate) fn copy(&self, source: Span<'_, f32>, target: SpanMut<'_, f32>) -> Result<(), Failure> {
        length("a copy", source.len, target.len)?;
        let bytes = source.len * size_of::<f32>();
        // SAFETY: both spans hold that many bytes and, one being borrowed mutably, do not overlap.
        unsafe { driver::memcpy_dtod_async(target.address, source.address, bytes, self.stream.get()) }
            .map_err(refused("cuMemcpyDtoDAsync"))
    }

    /// `target = lhs · rhs`, row-major; with `adds`, `target += lhs · rhs`.
    pub(crate) fn multiply(
        &self,
        target: SpanMut<'_, f32>,
        adds: bool,
        lhs: Matrix<'_>,
        rhs: Matrix<'_>,
    ) -> Result<(), Failure> {
        use cublas_sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
        const WHAT: &str = "a matrix product";
        let ((rows, inner), (rhs_rows, cols)) = (lhs.shape(), rhs.shape());
        length(WHAT, inner, rhs_rows)?;
        length(WHAT, rows * cols, target.len)?;
        for matrix in [lhs, rhs] {
            length(WHAT, matrix.rows * matrix.cols, matrix.data.len)?;
        }
        let size = |size: usize| c_int::try_from(size).map_err(|_| Failure::Size { what: WHAT, size });
        let operation = |matrix: Matrix<'_>| if matrix.transposed { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let (alpha, beta) = (1.0, if adds { 1.0 } else { 0.0 });
        // cuBLAS counts by columns, where a row-major matrix is its own transpose: targetᵀ = rhsᵀ · lhsᵀ.
        // SAFETY: lengths were checked above; leading dimensions are the stored columns of contiguous matrices;
        // the factors are read before the call returns, as the pointer mode is the host's.
        unsafe {
            cublas_sys::cublasSgemm_v2(
                self.blas,
                operation(rhs),
                operation(lhs),
                size(cols)?,
                size(rows)?,
                size(inner)?,
                &raw const alpha,
                rhs.data.address as *const f32,
                size(rhs.cols)?,
                lhs.data.address as *const f32,
                size(lhs.cols)?,
                &raw const beta,
                target.address as *mut f32,
                size(cols)?,
            )
        }
        .result()
        .map_err(refused_product("cublasSgemm"))
    }

    /// A launch of one block per row.
    pub(crate) fn rows(&self, kernel: Kernel, rows: usize) -> Launch<'_> {
        Launch {
            device: self,
            kernel,
            blocks: rows,
            shared_bytes: 0,
            slots: [0; OPERANDS],
            used: 0,
            failure: None,
        }
    }

    /// A launch of one thread per element.
    pub(crate) fn elements(&self, kernel: Kernel, elements: usize) -> Launch<'_> {
        self.rows(kernel, elements.div_ceil(THREADS))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: each was made once by `open`; the module is null where loading it failed. Destroying the handle
        // waits for its work. A refusal leaves nothing to be done.
        unsafe {
            let _ = cublas::destroy_handle(self.blas);
            if !self.module.is_null() {
                let _ = driver::module::unload(self.module);
            }
        }
    }
}

/// A launch in the making: operands in the kernel's order, then [`Launch::run`].
#[must_use = "a launch does nothing before `run`"]
pub(crate) struct Launch<'d> {
    device: &'d Device,
    kernel: Kernel,
    blocks: usize,
    shared_bytes: usize,
    /// Operands as the driver takes them: each in the low bytes of its slot, on the little-endian hosts CUDA has.
    slots: [u64; OPERANDS],
    used: usize,
    failure: Option<Failure>,
}

impl Launch<'_> {
    /// Shared memory for `elements` numbers per block.
    pub(crate) fn shared(mut self, elements: usize) -> Self {
        self.shared_bytes = elements * size_of::<f32>();
        if self.shared_bytes > SHARED_BYTES {
            self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size: elements });
        }
        self
    }

    /// An operand of which `elements` are read.
    pub(crate) fn reads<T>(self, span: Span<'_, T>, elements: usize) -> Self {
        self.operand(span.address, span.len, elements)
    }

    /// An operand of which `elements` are written, or updated.
    pub(crate) fn writes<T>(self, span: SpanMut<'_, T>, elements: usize) -> Self {
        self.operand(span.address, span.len, elements)
    }

    /// An `unsigned`.
    pub(crate) fn size(mut self, size: usize) -> Self {
        if c_uint::try_from(size).is_err() {
            self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size });
        }
        self.slot(size as u64)
    }

    /// A `float`.
    pub(crate) fn float(self, value: f32) -> Self {
        self.slot(u64::from(value.to_bits()))
    }

    fn operand(mut self, address: u64, given: usize, wanted: usize) -> Self {
        if let Err(failure) = length(self.kernel.name(), wanted, given) {
            self.failure.get_or_insert(failure);
        }
        self.slot(address)
    }

    fn slot(mut self, bits: u64) -> Self {
        match self.slots.get_mut(self.used) {
            Some(slot) => *slot = bits,
            None => {
                _ = self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size: self.used })
            }
        }
        self.used += 1;
        self
    }

    /// Enqueues the kernel.
    ///
    /// # Errors
    /// The first operand that does not fit, or what the driver refuses.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let blocks = i32::try_from(self.blocks).ok().filter(|blocks| *blocks > 0);
        let blocks = blocks.ok_or(Failure::Size { what: self.kernel.name(), size: self.blocks })?;
        let mut operands = self.slots.each_mut().map(|slot| std::ptr::from_mut(slot).cast::<c_void>());
        // SAFETY: the function takes the operands its wrapper in `ops.rs` and beside names, in that order; each was
        // checked to hold the elements that `kernels.cu` says it touches; the driver copies them before it returns.
        unsafe {
            driver::launch_kernel(
                self.device.functions[self.kernel as usize],
                (blocks.unsigned_abs(), 1, 1),
                (THREADS as c_uint, 1, 1),
                self.shared_bytes as c_uint,
                self.device.stream.get(),
                &mut operands,
            )
        }
        .map_err(refused(self.kernel.name()))
    }
}

/// Room for `len` elements, which hold anything.
fn allocate<T: Pod>(context: &Rc<Context>, len: usize) -> Result<Buffer<T>, Failure> {
    let bytes = (len * size_of::<T>()).max(1);
    // SAFETY: the context is current; the memory is freed by the buffer.
    let address = unsafe { driver::malloc_sync(bytes) }.map_err(refused("cuMemAlloc"))?;
    Ok(Buffer { address, len, context: Rc::clone(context), elements: PhantomData })
}

fn length(what: &'static str, wanted: usize, given: usize) -> Result<(), Failure> {
    if wanted == given { Ok(()) } else { Err(Failure::Length { what, wanted, given }) }
}

fn refused(call: &'static str) -> impl Fn(cudarc::driver::DriverError) -> Failure {
    move |error| {
        let name = error.error_name().ok().map(|name| name.to_string_lossy().into_owned());
        Failure::Refused { call, code: name.unwrap_or_else(|| format!("{:?}", error.0)) }
    }
}

fn refused_product(call: &'static str) -> impl Fn(cublas::CublasError) -> Failure {
    move |error| Failure::Refused { call, code: format!("{:?}", error.0) }
}
