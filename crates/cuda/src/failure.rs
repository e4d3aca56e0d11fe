//! What the CUDA libraries answer when they refuse: one typed error, with the call, the code and advice.
//!
//! Law: a code is looked up where it arises. Nothing above this file knows a number of CUDA, NVRTC, NCCL,
//! cuBLASLt or CUPTI.

use cudarc::{cublaslt, cupti, driver, nccl, nvrtc};

use warpweft_plan::compute::ComputeError;

/// A refused call of a CUDA library.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CudaFailure {
    /// A library is not on this machine.
    #[error("{library} cannot be opened; {advice}")]
    Library {
        /// The library.
        library: &'static str,
        /// How to get it.
        advice: &'static str,
    },
    /// A library refused a call.
    #[error("{call} answered {code}{advice}")]
    Call {
        /// The call.
        call: &'static str,
        /// The library's own name for what happened.
        code: String,
        /// What helps, beginning with a semicolon, or nothing.
        advice: &'static str,
    },
    /// NCCL refused a call, or a transfer failed: often because a peer is gone, which NCCL does not say.
    #[error("{call} answered {code}; NCCL_DEBUG=INFO makes NCCL say why")]
    Nccl {
        /// The call.
        call: &'static str,
        /// NCCL's own name for what happened.
        code: String,
    },
    /// A kernel does not compile, which is a fault of this library.
    #[error("kernels do not compile for {architecture}; please report it with this log:\n{log}")]
    Compile {
        /// The architecture, such as `sm_90`.
        architecture: String,
        /// What the compiler said.
        log: String,
    },
    /// Something the libraries allow but this backend cannot do.
    #[error("{0}")]
    Refused(String),
}

warpweft_base::debug_in_words!(CudaFailure);

impl CudaFailure {
    /// From a driver call.
    pub(crate) fn driver(call: &'static str) -> impl Fn(driver::DriverError) -> Self {
        use driver::sys::CUresult;
        move |error| {
            let advice = match error.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    "; set memory.budget, or lower it (with tune.steps, room is made for the largest trial), lower prefetch.depth, use more ranks, or free memory of other programs"
                }
                CUresult::CUDA_ERROR_ILLEGAL_ADDRESS | CUresult::CUDA_ERROR_LAUNCH_FAILED => {
                    "; a kernel went astray, a user's or ours: run under compute-sanitizer to see which"
                }
                CUresult::CUDA_ERROR_INVALID_DEVICE | CUresult::CUDA_ERROR_NO_DEVICE => {
                    "; see nvidia-smi -L and CUDA_VISIBLE_DEVICES"
                }
                CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                | CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                | CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION => {
                    "; a closure did what cannot be captured, such as waiting or allocating: declare its call dynamic and set capture = \"segments\", or set capture = \"off\""
                }
                _ => "",
            };
            Self::Call { call, code: words(&error), advice }
        }
    }

    /// From a call of NVRTC.
    pub(crate) fn compiler(call: &'static str) -> impl Fn(nvrtc::result::NvrtcError) -> Self {
        move |error| Self::Call { call, code: format!("{:?}", error.0), advice: "" }
    }

    /// From a call of cuBLASLt.
    pub(crate) fn products(call: &'static str) -> impl Fn(cublaslt::result::CublasError) -> Self {
        use cublaslt::sys::cublasStatus_t;
        move |error| {
            let advice = match error.0 {
                cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED | cublasStatus_t::CUBLAS_STATUS_ARCH_MISMATCH => {
                    "; this GPU or this cuBLASLt has no such product: update cuBLAS, or compute it in bf16"
                }
                cublasStatus_t::CUBLAS_STATUS_NOT_INITIALIZED
                | cublasStatus_t::CUBLAS_STATUS_ALLOC_FAILED => {
                    "; cuBLASLt found no memory: lower memory.budget"
                }
                _ => "; CUBLASLT_LOG_LEVEL=5 makes cuBLASLt say why",
            };
            Self::Call { call, code: format!("{:?}", error.0), advice }
        }
    }

    /// From a call of CUPTI.
    pub(crate) fn profiler(call: &'static str) -> impl Fn(cupti::result::CuptiError) -> Self {
        use cupti::sys::CUptiResult;
        move |error| {
            let advice = match error.0 {
                CUptiResult::CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED => {
                    "; another profiler looks at this process"
                }
                CUptiResult::CUPTI_ERROR_INSUFFICIENT_PRIVILEGES
                | CUptiResult::CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES => {
                    "; the driver lets administrators profile only (its option NVreg_RestrictProfilingToAdminUsers)"
                }
                _ => "",
            };
            Self::Call { call, code: format!("{:?}", error.0), advice }
        }
    }

    /// From a call of NCCL.
    pub(crate) fn nccl(call: &'static str) -> impl Fn(nccl::result::NcclError) -> Self {
        move |error| Self::Nccl { call, code: format!("{:?}", error.0) }
    }
}

/// For closures and their factories, so that `?` serves them.
impl From<CudaFailure> for ComputeError {
    fn from(failure: CudaFailure) -> Self {
        Self::closure(failure)
    }
}

/// The driver's name and words for a code.
fn words(error: &driver::DriverError) -> String {
    let text = |text: Result<&std::ffi::CStr, _>| text.ok().map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(words)) => format!("{name} ({words})"),
        _ => format!("{:?}", error.0),
    }
}
