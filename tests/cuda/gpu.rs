//! A GPU for tests: memory with guard bytes around it, and launches that are waited for.

#![allow(unsafe_code, reason = "driver calls, on memory that the tests own")]

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use bytemuck::Pod;
use cudarc::driver::{result, sys};
use warpweft_cuda::kernels::{KernelLaunch, Kernels};
use warpweft_cuda::{CudaFailure, DeviceAddress, KernelCache};

/// Bytes kept on either side of every buffer, and what they hold.
const GUARD_BYTES: usize = 256;
const GUARD: u8 = 0xC3;

/// The first GPU, its context current on the thread that asked.
pub(crate) struct Gpu {
    pub(crate) kernels: &'static Kernels,
    /// Only one test uses the GPU at a time: a fault of one must not be blamed on another.
    _turn: MutexGuard<'static, ()>,
}

/// The kernels of the process; why there are none otherwise.
fn kernels() -> &'static Result<(Kernels, Context), String> {
    static KERNELS: OnceLock<Result<(Kernels, Context), String>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let context = Context::open()?;
        context.make_current();
        let kernels = Kernels::for_current_context(KernelCache::of_user());
        let kernels = kernels.and_then(|kernels| kernels.load_all().map(|()| kernels));
        kernels.map(|kernels| (kernels, context)).map_err(|failure| failure.to_string())
    })
}

struct Context(sys::CUcontext);

// SAFETY: a context handle is a name the driver looks up.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn open() -> Result<Self, String> {
        // SAFETY: opening the driver runs NVIDIA's own initializers.
        if !std::panic::catch_unwind(|| unsafe { sys::is_culib_present() }).unwrap_or(false) {
            return Err("no CUDA driver".to_owned());
        }
        let text = |error: result::DriverError| format!("{error:?}");
        result::init().map_err(text)?;
        let device = result::device::get(0).map_err(text)?;
        // SAFETY: the device is one the driver just gave; its context is kept until the process ends.
        unsafe { result::primary_ctx::retain(device) }.map(Self).map_err(text)
    }

    fn make_current(&self) {
        // SAFETY: the context is retained for good.
        unsafe { result::ctx::set_current(self.0) }.unwrap();
    }
}

impl Gpu {
    /// The GPU, or `None` and a line that says which test was skipped and why.
    pub(crate) fn open(test: &str) -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        match kernels() {
            Ok((kernels, context)) => {
                let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
                context.make_current();
                Some(Self { kernels, _turn: turn })
            }
            Err(reason) => {
                super::say_skipped(&format_args!("{test}: {reason}"));
                None
            }
        }
    }

    /// A buffer that holds `values`.
    pub(crate) fn buffer<T: Pod>(&self, values: &[T]) -> Buffer<T> {
        self.buffer_at(values, 0)
    }

    /// The same, `shift` bytes after a multiple of 256.
    pub(crate) fn buffer_at<T: Pod>(&self, values: &[T], shift: usize) -> Buffer<T> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut all = vec![GUARD; GUARD_BYTES + shift];
        all.extend(bytes);
        all.resize(all.len() + GUARD_BYTES, GUARD);
        // SAFETY: a context is current; the memory is filled at once, and freed when the buffer is dropped.
        let base = unsafe { result::malloc_sync(all.len()) }.unwrap();
        // SAFETY: the allocation has as many bytes.
        unsafe { result::memcpy_htod_sync(base, &all) }.unwrap();
        Buffer { base, shift, len: values.len(), what: RefCell::new(all), element: PhantomData }
    }

    /// Runs a launch and waits for it.
    pub(crate) fn run(&self, launch: Result<KernelLaunch, CudaFailure>) {
        let launch = launch.unwrap();
        // SAFETY: the operands are buffers of this test, which live until it has waited.
        unsafe { launch.enqueue(std::ptr::null_mut()) }.unwrap();
        result::ctx::synchronize().unwrap();
    }
}

/// Device memory between guard bytes.
pub(crate) struct Buffer<T> {
    base: sys::CUdeviceptr,
    shift: usize,
    len: usize,
    what: RefCell<Vec<u8>>,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn address(&self) -> DeviceAddress {
        DeviceAddress::new(self.base + (GUARD_BYTES + self.shift) as u64)
    }

    /// Replaces all values.
    pub(crate) fn write(&self, values: &[T]) {
        assert_eq!(values.len(), self.len);
        // SAFETY: the buffer has as many values.
        unsafe { result::memcpy_htod_sync(self.address().number(), values) }.unwrap();
    }

    /// What the buffer holds. Panics if a guard byte changed.
    pub(crate) fn read(&self) -> Vec<T> {
        let mut all = self.what.borrow_mut();
        // SAFETY: the allocation has as many bytes.
        unsafe { result::memcpy_dtoh_sync(&mut all, self.base) }.unwrap();
        let begin = GUARD_BYTES + self.shift;
        let end = begin + self.len * size_of::<T>();
        for (place, byte) in all[..begin].iter().rev().enumerate() {
            assert_eq!(*byte, GUARD, "{} bytes before a buffer of {} bytes", place + 1, end - begin);
        }
        for (place, byte) in all[end..].iter().enumerate() {
            assert_eq!(*byte, GUARD, "{place} bytes after a buffer of {} bytes", end - begin);
        }
        bytemuck::pod_collect_to_vec(&all[begin..end])
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated once, freed once; nothing runs on the device any more.
        let _ = unsafe { result::free_sync(self.base) };
    }
}
