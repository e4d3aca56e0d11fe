//! A kernel made ready: function, grid, arguments.
//!
//! Law: **BK-2** everything is worked out when a plan is bound; enqueuing passes what is here and
//! neither allocates nor waits.

use std::ffi::c_void;

use cudarc::driver::{result, sys};

use super::failure::CudaFailure;
use super::stream::Stream;

/// Arguments of one kernel, at most.
const ARGUMENTS: usize = 16;

/// One launch of one kernel.
#[derive(Clone)]
pub(super) struct KernelLaunch {
    /// The kernel's name, for errors.
    pub(super) name: &'static str,
    /// The kernel; its module outlives every launch.
    pub(super) function: sys::CUfunction,
    /// Blocks.
    pub(super) grid: (u32, u32, u32),
    /// Threads of a block.
    pub(super) block: u32,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    /// Arguments in the kernel's order, each in the low bytes of a word.
    pub(super) arguments: Vec<u64>,
}

// SAFETY: a function handle is a name the driver looks up; arguments are numbers.
unsafe impl Send for KernelLaunch {}
// SAFETY: as above.
unsafe impl Sync for KernelLaunch {}

impl KernelLaunch {
    /// Enqueues the kernel. One without blocks is nothing to do.
    pub(super) fn enqueue(&self, stream: &Stream) -> Result<(), CudaFailure> {
        if self.grid.0 == 0 || self.grid.1 == 0 || self.grid.2 == 0 {
            return Ok(());
        }
        if self.arguments.len() > ARGUMENTS {
            return Err(CudaFailure::Refused(format!("{}: more than {ARGUMENTS} arguments", self.name)));
        }
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS];
        for (pointer, argument) in pointers.iter_mut().zip(&self.arguments) {
            *pointer = std::ptr::from_ref(argument).cast_mut().cast();
        }
        let parameters = &mut pointers[..self.arguments.len()];
        let block = (self.block, 1, 1);
        // SAFETY: the function is alive and takes these arguments, of at most 8 bytes each, which the driver
        // copies before it returns; the ranges they name were measured when the launch was made.
        unsafe {
            result::launch_kernel(self.function, self.grid, block, self.shared, stream.handle(), parameters)
        }
        .map_err(CudaFailure::driver("cuLaunchKernel"))
    }
}

impl std::fmt::Debug for KernelLaunch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} on {:?} blocks of {}", self.name, self.grid, self.block)
    }
}
