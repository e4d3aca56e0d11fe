//! A launch, ready to be enqueued any number of times.

use std::ffi::c_void;
use std::sync::Arc;

use bytemuck::{NoUninit, Zeroable};
use cudarc::driver::{result, sys};

use super::device_table::DeviceTable;
use super::module::Function;
use crate::failure::CudaFailure;

/// Threads of a block: `THREADS` in `kernels/common.cuh`.
pub(super) const THREADS: u32 = 256;
/// Warps of a block: `WARPS` in `kernels/common.cuh`.
pub(super) const WARPS: u64 = THREADS as u64 / 32;

/// The most blocks that a large device runs at one time: eight on each of 132 multiprocessors. What is cut by
/// it is correct on any device, and fast on such devices.
pub(super) const RESIDENT: u64 = 8 * 132;

/// Room for the arguments of every kernel, which takes one struct.
const ARGUMENT_WORDS: usize = 19;

/// One kernel with its grid, its arguments and the table they point at.
#[derive(Clone, Debug)]
pub struct KernelLaunch {
    function: Function,
    blocks: u32,
    threads: u32,
    arguments: [u64; ARGUMENT_WORDS],
    #[expect(dead_code, reason = "keeps the memory the arguments point at")]
    table: Option<Arc<DeviceTable>>,
}

impl KernelLaunch {
    /// `blocks` blocks of `threads` threads; `arguments` is the struct the kernel takes. Without blocks
    /// nothing is done.
    pub(super) fn new<A: NoUninit>(
        function: Function,
        blocks: u32,
        threads: u32,
        arguments: A,
        table: Option<DeviceTable>,
    ) -> Self {
        const { assert!(size_of::<A>() <= ARGUMENT_WORDS * size_of::<u64>()) };
        let mut words = <[u64; ARGUMENT_WORDS]>::zeroed();
        bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..size_of::<A>()]
            .copy_from_slice(bytemuck::bytes_of(&arguments));
        Self { function, blocks, threads, arguments: words, table: table.map(Arc::new) }
    }

    /// Puts the launch on a stream. Neither allocates nor waits; while the stream is being captured, the
    /// launch is.
    ///
    /// # Errors
    /// [`CudaFailure::Call`] when the driver refuses, which includes errors of earlier launches.
    ///
    /// # Safety
    /// The context the launch was prepared in is current, and `stream` is one of its streams. Until the launch
    /// has run, this value lives, and every address it was prepared with is memory of the extent that the
    /// preparing function documents, which nothing else writes, or reads where the kernel writes. Nor does a launch of
    /// this value, or of a clone, run at the same time: they share counters.
    pub unsafe fn enqueue(&self, stream: sys::CUstream) -> Result<(), CudaFailure> {
        if self.blocks == 0 {
            return Ok(());
        }
        let arguments: *const u64 = self.arguments.as_ptr();
        let mut parameters = [arguments.cast_mut().cast::<c_void>()];
        // SAFETY: the function's one parameter is the struct that `arguments` holds, which the driver copies;
        // the rest is the caller's promise.
        unsafe {
            result::launch_kernel(
                self.function.handle,
                (self.blocks, 1, 1),
                (self.threads, 1, 1),
                0,
                stream,
                &mut parameters,
            )
        }
        .map_err(CudaFailure::driver("cuLaunchKernel"))
    }
}
