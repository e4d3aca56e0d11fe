//! The plain kernel: the time of reading and writing given numbers of bytes, with nothing computed.
//!
//! A copy reads as much as it writes, and what a small one writes is still in the L2 cache when its time is
//! taken. So it is no measure for a kernel that mostly reads, or mostly writes; this one is.

use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};

/// Bytes in a line of the kernel's shares.
const LINE: usize = 128;
const THREADS: u32 = 256;
/// Bytes that a block moves, of whichever range is longer. Which is fastest depends on the size.
const SHARES: [usize; 3] = [16 << 10, 32 << 10, 128 << 10];

pub(crate) struct Plain {
    function: sys::CUfunction,
}

impl Plain {
    /// # Errors
    /// NVRTC or the driver cannot make the kernel.
    pub(crate) fn new() -> Result<Self, String> {
        let ptx = cudarc::nvrtc::compile_ptx(include_str!("plain.cu")).map_err(|error| error.to_string())?;
        let text = CString::new(ptx.to_src()).map_err(|error| error.to_string())?;
        // SAFETY: the image is text that ends with a zero; the module stays until the process ends.
        let function = unsafe {
            let module =
                result::module::load_data(text.as_ptr().cast()).map_err(|error| format!("{error:?}"))?;
            result::module::get_function(module, c"read_and_write".to_owned())
        };
        Ok(Self { function: function.map_err(|error| format!("{error:?}"))? })
    }

    /// Microseconds of the fastest of some grids; `median` takes the time of what a closure enqueues.
    pub(crate) fn time(
        &self,
        (from, reads): (sys::CUdeviceptr, usize),
        (to, writes): (sys::CUdeviceptr, usize),
        stream: sys::CUstream,
        median: impl Fn(&mut dyn FnMut()) -> f64,
    ) -> f64 {
        let (mut from, mut to) = (from, to);
        let [mut read_lines, mut written_lines] = [reads, writes].map(|bytes| (bytes / LINE) as u64);
        let mut of_share = |share: usize| {
            let blocks = reads.max(writes).div_ceil(share).max(1) as u32;
            median(&mut || {
                let mut arguments: [*mut c_void; 4] = [
                    (&raw mut from).cast(),
                    (&raw mut read_lines).cast(),
                    (&raw mut to).cast(),
                    (&raw mut written_lines).cast(),
                ];
                // SAFETY: the arguments are those of the kernel, on ranges of the pool; nobody looks at what they hold.
                unsafe {
                    let (grid, block) = ((blocks, 1, 1), (THREADS, 1, 1));
                    result::launch_kernel(self.function, grid, block, 0, stream, &mut arguments).unwrap();
                }
            })
        };
        SHARES.into_iter().map(&mut of_share).fold(f64::INFINITY, f64::min)
    }
}
