//! Failures of this crate: an answer of the CUDA libraries, with the call, the code and advice, or a product that a
//! layer of `linear` does not compute.
//!
//! Law: a code is looked up where it arises. Nothing above this file knows a number of CUDA, NVRTC, NCCL,
//! cuBLASLt or CUPTI.

use cudarc::{cublaslt, cupti, driver, nccl, nvrtc};

use super::compute_capability::ComputeCapability;
use warpweft_format::{ElementType, Format, Fp8Element, Orientation, Shape};
use warpweft_plan::compute::ComputeError;

/// A refused call of a CUDA library, or a product that cannot be computed.
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

    // Products of `linear` that cannot be computed: a layer cannot be made, or a product not enqueued.
    /// The GPU has no products of this format, or this module does not use them.
    #[error(
        "no products of {format} on a GPU of compute capability {capability} ({needs}); declare the weight's uses as Form::DenseBf16 and compute by Recipe::Bf16"
    )]
    Unsupported {
        /// Format of the weight.
        format: Format,
        /// The GPU's generation.
        capability: ComputeCapability,
        /// What they need.
        needs: &'static str,
    },
    /// A dimension that the products of a recipe do not take.
    #[error(
        "{what} are {size}, and products of {recipe} need a multiple of {multiple}; pad them to {}, or compute by Recipe::Bf16",
        size.next_multiple_of(*multiple)
    )]
    Dimension {
        /// Which dimension.
        what: &'static str,
        /// What it is.
        size: usize,
        /// What it must be a multiple of.
        multiple: usize,
        /// The recipe's name.
        recipe: String,
    },
    /// Rows that would overlap.
    #[error(
        "{inputs} inputs do not fit into lines of {pitch} elements; the pitch is the width of the matrix that holds x"
    )]
    Pitch {
        /// Elements from one token to the next.
        pitch: usize,
        /// Inputs of the weight.
        inputs: usize,
    },
    /// No tokens, inputs or outputs.
    #[error(
        "a linear layer of {tokens} tokens and a weight of {weight} has nothing to compute; give it at least one of each"
    )]
    Empty {
        /// Rows of the activations.
        tokens: usize,
        /// The weight's shape.
        weight: Shape,
    },
    /// A matrix without elements.
    #[error("a matrix of {shape} has nothing to orthogonalize; give it at least one row and one column")]
    NoMatrix {
        /// Its shape.
        shape: Shape,
    },
    /// A size beyond what products can address.
    #[error("{size} {what} are more than the {largest} a product takes; split the layer")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How many.
        size: usize,
        /// How many there may be.
        largest: usize,
    },
    /// Results come in f32 or bf16.
    #[error("results are f32 or bf16, not {element}; request one of them in the LinearSpec")]
    Result {
        /// The element type requested.
        element: ElementType,
    },
    /// The recipe's data gradient reads another orientation.
    #[error(
        "the data gradient of {recipe} reads the weight {expected}, not {actual}; use Recipe::dgrad_orientation"
    )]
    DataGradient {
        /// The recipe's name.
        recipe: String,
        /// What it reads.
        expected: Orientation,
        /// What was requested.
        actual: Orientation,
    },
    /// Gradients in an element that the recipe does not quantize to.
    #[error(
        "{recipe} has one element for all factors and none of {element:?} for gradients; leave LinearSpec::gradients as LinearSpec::new has it"
    )]
    Gradients {
        /// The recipe's name.
        recipe: String,
        /// What was requested.
        element: Fp8Element,
    },
    /// A weight that is not what the layer was made for.
    #[error(
        "the weight is {actual}, and this product reads {expected}; declare that use, or make a layer for this weight"
    )]
    Weight {
        /// What the product reads.
        expected: String,
        /// What it was given.
        actual: String,
    },
    /// GELU on the way to codes, where products do not support it.
    #[error(
        "{what} was to be made by GELU on the way to codes, which products of {recipe} do not; take it by Elementwise first and give the result"
    )]
    Gelu {
        /// Which operand.
        what: &'static str,
        /// The recipe's name.
        recipe: String,
    },
    /// Nothing is kept of an x that the weight's gradient multiplies as it is.
    #[error(
        "the weight's gradient of {recipe} reads x as it is, so there is nothing to keep of it; use Linear::forward, and give x to backward"
    )]
    NothingKept {
        /// The recipe's name.
        recipe: String,
    },
    /// Memory that begins where products do not expect it.
    #[error(
        "{what} begins at 0x{address:x}, and a multiple of {multiple} bytes is needed; a declared buffer begins at one"
    )]
    Misaligned {
        /// Which operand.
        what: &'static str,
        /// Where it begins.
        address: u64,
        /// What that must be a multiple of.
        multiple: usize,
    },
    /// An operand of the wrong size.
    #[error(
        "{what} has {actual} elements of {element}, and {expected} of {wanted} are needed; declare its buffer so, or make a layer for what there is"
    )]
    Operand {
        /// Which operand.
        what: &'static str,
        /// Its elements.
        actual: usize,
        /// Its element type.
        element: ElementType,
        /// Elements needed.
        expected: usize,
        /// Element type needed.
        wanted: ElementType,
    },
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
