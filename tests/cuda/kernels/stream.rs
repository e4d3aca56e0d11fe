//! Streams for tests of launches that are in flight.

#![allow(unsafe_code, reason = "driver calls, on streams that the tests own")]

use std::io::Write;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use warpweft_cuda::kernels::KernelLaunch;

use crate::gpu::Gpu;

/// Longer than any test needs.
const DEADLINE: Duration = Duration::from_secs(20);

/// A stream that waits for no other. Copies of buffers do not wait for it.
pub(crate) struct Stream(sys::CUstream);

impl Stream {
    /// A stream of the GPU's context, which is current.
    pub(crate) fn new(_gpu: &Gpu) -> Self {
        Self(result::stream::create(result::stream::StreamKind::NonBlocking).unwrap())
    }

    /// Puts a launch on the stream, and does not wait for it. The launch and the buffers of its operands live
    /// until [`wait`](Self::wait) returns.
    pub(crate) fn enqueue(&self, launch: &KernelLaunch) {
        // SAFETY: the operands are buffers of the test, which waits before it drops them.
        unsafe { launch.enqueue(self.0) }.unwrap();
    }

    /// Is everything over that was enqueued?
    pub(crate) fn is_idle(&self) -> bool {
        // SAFETY: the stream is ours and lives.
        let answer = unsafe { sys::cuStreamQuery(self.0) };
        assert!(
            matches!(answer, sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY),
            "{answer:?}"
        );
        answer == sys::CUresult::CUDA_SUCCESS
    }

    /// Waits for what was enqueued. A kernel that never ends would hold up whatever frees memory, so then the
    /// process ends instead.
    pub(crate) fn wait(&self) {
        if !in_time(|| self.is_idle()) {
            let _ = writeln!(std::io::stderr(), "a launch has not ended after {DEADLINE:?}");
            std::process::exit(101);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

/// Looks until `is_so`, and says whether it was in time.
pub(crate) fn in_time(mut is_so: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if is_so() {
            return true;
        }
        if begun.elapsed() > DEADLINE {
            return false;
        }
        std::thread::yield_now();
    }
}
