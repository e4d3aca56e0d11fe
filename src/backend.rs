//! Devices behind one trait: threads of the CPU, virtual time, and GPUs.

#[doc(inline)]
pub use warpweft_backend::{
    Activity, Backend, BackendError, Checked, ClosureFault, HostSplit, Inspection, Meter, TaskInterval, cpu,
    sim,
};
/// GPUs: streams, CUDA graphs, collectives and kernels.
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use warpweft_cuda as cuda;
