//! CUDA libraries found on this machine.
//!
//! Law: nothing calls a library before it was requested here; the binding panics on one that is missing.
//! Where another crate of the graph makes the binding link the libraries (`dynamic-linking`), a program starts only
//! with all of them, so none is missing here.

use std::panic::catch_unwind;

use crate::failure::CudaFailure;

/// A library the backend opens at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
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

/// The answer where the binding links libraries, which then has no function of this name. Where it opens them it
/// has one for each library, which hides this one behind the wildcards of `is_present`.
#[allow(dead_code, reason = "hidden where libraries are opened")]
unsafe fn is_culib_present() -> bool {
    true
}

impl Library {
    /// # Errors
    /// [`CudaFailure::Library`] when it cannot be opened.
    pub(crate) fn open(self) -> Result<(), CudaFailure> {
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

    #[allow(
        unused_imports,
        reason = "where libraries are linked, these wildcards bring no `is_culib_present`"
    )]
    fn is_present(self) -> bool {
        // SAFETY: opening a library runs its initializers; these are NVIDIA's own, made to be opened.
        let present = catch_unwind(|| unsafe {
            match self {
                Self::Driver => {
                    use cudarc::driver::sys::*;
                    is_culib_present()
                }
                Self::Compiler => {
                    use cudarc::nvrtc::sys::*;
                    is_culib_present()
                }
                Self::Nccl => {
                    use cudarc::nccl::sys::*;
                    is_culib_present()
                }
                Self::Products => {
                    use cudarc::cublaslt::sys::*;
                    is_culib_present()
                }
                Self::Profiler => {
                    use cudarc::cupti::sys::*;
                    is_culib_present()
                }
            }
        });
        present.unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine without one of these libraries tells the two answers apart. This crate's own builds open them.
    #[test]
    fn where_libraries_are_opened_the_binding_is_asked_whether_they_are_there() {
        // SAFETY: as in `is_present`.
        let requested = unsafe {
            [
                (Library::Driver, cudarc::driver::sys::is_culib_present()),
                (Library::Compiler, cudarc::nvrtc::sys::is_culib_present()),
                (Library::Nccl, cudarc::nccl::sys::is_culib_present()),
                (Library::Products, cudarc::cublaslt::sys::is_culib_present()),
                (Library::Profiler, cudarc::cupti::sys::is_culib_present()),
            ]
        };
        for (library, present) in requested {
            assert_eq!(library.is_present(), present, "{library:?}");
            assert_eq!(library.open().is_ok(), present, "{library:?}");
        }
    }
}
