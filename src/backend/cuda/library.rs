//! Which CUDA libraries this machine has.
//!
//! Law: nothing calls a library before it was asked for here; the binding panics on one that is missing.

use std::panic::catch_unwind;

use super::failure::CudaFailure;

/// A library the backend opens at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// The driver: `libcuda`.
    Driver,
    /// The run-time compiler: `libnvrtc`.
    Compiler,
    /// Collectives: `libnccl`.
    Nccl,
    /// Matrix products: `libcublasLt`.
    Products,
    /// What ran when: `libcupti`.
    Profiler,
}

impl Library {
    /// # Errors
    /// [`CudaFailure::Library`] when it cannot be opened.
    pub(super) fn open(self) -> Result<(), CudaFailure> {
        let (library, advice) = match self {
            Self::Driver => ("the CUDA driver (libcuda)", "install NVIDIA's driver, or use the CPU backend"),
            Self::Compiler => {
                ("the kernel compiler (libnvrtc)", "install CUDA's NVRTC and put it on LD_LIBRARY_PATH")
            }
            Self::Nccl => {
                ("NCCL (libnccl)", "install it and put it on LD_LIBRARY_PATH, or set transport = \"peer\"")
            }
            Self::Products => (
                "the library of products (libcublasLt)",
                "install CUDA's cuBLAS and put it on LD_LIBRARY_PATH",
            ),
            Self::Profiler => {
                ("the profiler (libcupti)", "install CUDA's CUPTI and put it on LD_LIBRARY_PATH")
            }
        };
        if self.is_present() { Ok(()) } else { Err(CudaFailure::Library { library, advice }) }
    }

    fn is_present(self) -> bool {
        // SAFETY: opening a library runs its initializers; these are NVIDIA's own, made to be opened.
        let present = catch_unwind(|| unsafe {
            match self {
                Self::Driver => cudarc::driver::sys::is_culib_present(),
                Self::Compiler => cudarc::nvrtc::sys::is_culib_present(),
                Self::Nccl => cudarc::nccl::sys::is_culib_present(),
                Self::Products => cudarc::cublaslt::sys::is_culib_present(),
                Self::Profiler => cudarc::cupti::sys::is_culib_present(),
            }
        });
        present.unwrap_or(false)
    }
}
