//! Devices behind one trait: threads of the CPU, virtual time, and GPUs.

#[doc(inline)]
pub use warpweft_backend::*;
/// GPUs: streams, CUDA graphs, collectives and kernels.
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use warpweft_cuda as cuda;
