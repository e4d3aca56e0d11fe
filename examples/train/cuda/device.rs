//! One GPU of one rank: memory, kernels, products.
//!
//! Laws:
//! - Every operand of a launch or product is given with the number of elements it touches there, and is checked
//!   against the span's length; the kernels promise to touch no others.
//! - Once a device is open and its buffers are made, nothing here allocates or waits.
//! - A handle is used on the thread that made it: a device is neither `Send` nor `Sync`.
#![allow(unsafe_code, reason = "the CUDA driver and cuBLAS are C libraries")]

use std::cell::Cell;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::rc::Rc;

use bytemuck::Pod;
use cudarc::cublas::{result as cublas, sys as cublas_sys};
use cudarc::driver::{result as driver, sys};

use super::compile::Cubin;
use super::failure::Failure;
use super::kernel::Kernel;
use super::launch::{OPERANDS, THREADS, length};
use super::library::{Library, refused};
use super::span::{Matrix, Span, SpanMut};

/// cuBLAS's advice for Hopper; other architectures take less.
const WORKSPACE_BYTES: usize = 32 << 20;

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

    /// Enqueues `blocks` blocks of a kernel. Safe for a [`Launch`], which checked the operands.
    pub(super) fn enqueue(
        &self,
        kernel: Kernel,
        blocks: c_uint,
        shared_bytes: c_uint,
        mut slots: [u64; OPERANDS],
    ) -> Result<(), Failure> {
        let mut operands = slots.each_mut().map(|slot| std::ptr::from_mut(slot).cast::<c_void>());
        // SAFETY: the operands are those the kernel lists, in its order; `Launch` checked that each holds the
        // elements the kernel touches; the driver copies them before it returns.
        unsafe {
            driver::launch_kernel(
                self.functions[kernel as usize],
                (blocks, 1, 1),
                (THREADS as c_uint, 1, 1),
                shared_bytes,
                self.stream.get(),
                &mut operands,
            )
        }
        .map_err(refused(kernel.name()))
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

/// Room for `len` elements, which hold anything.
fn allocate<T: Pod>(context: &Rc<Context>, len: usize) -> Result<Buffer<T>, Failure> {
    let bytes = (len * size_of::<T>()).max(1);
    // SAFETY: the context is current; the memory is freed by the buffer.
    let address = unsafe { driver::malloc_sync(bytes) }.map_err(refused("cuMemAlloc"))?;
    Ok(Buffer { address, len, context: Rc::clone(context), elements: PhantomData })
}

fn refused_product(call: &'static str) -> impl Fn(cublas::CublasError) -> Failure {
    move |error| Failure::Refused { call, code: format!("{:?}", error.0) }
}
