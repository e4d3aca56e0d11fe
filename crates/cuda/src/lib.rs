//! The CUDA backend: one GPU per rank, one thread per GPU, in one process or several.
//!
//! It is not a CUDA library for all purposes: it carries out plans, and its [`linear`] layers multiply weights as plans
//! leave them. No version number promises anything of this crate: use `warpweft` with the feature `cuda`.
//!
//! ```
//! use warpweft_cuda::linear::{LinearSpec, Recipe};
//! use warpweft_format::{ElementType, Shape};
//!
//! // What a layer of 2048 tokens computes in bf16, before there is a device to compute it on.
//! let spec = LinearSpec::new(Recipe::Bf16, 2048, Shape::new(4096, 1024));
//! assert_eq!((spec.output, spec.input_pitch), (ElementType::Bf16, 1024));
//! ```
//!
//! Laws:
//! - The libraries are opened when a world is made: nothing of CUDA is needed to build, and without a GPU the
//!   library says so and the CPU backend serves.
//! - A rank's memory is one plain allocation that never moves. Whatever a step enqueues was prepared when its
//!   plan was bound.
//! - A lane that makes no progress within the deadline, and a rank that fails, end every wait of this world
//!   with the reason. This library cannot end three waits: NCCL's opening call, a closure that does not
//!   return, and a call of the driver that does not.
//!
//! | folder | what it holds |
//! |---|---|
//! | `device` | what the driver gives of one GPU: context, memory, streams |
//! | `world` | which ranks there are, on which devices, and what they share |
//! | `transport` | collectives as commands: writes into peers' memory, NCCL, or both, and how ranks meet |
//! | `bind` | a plan made ready for one rank, and the lanes that enqueue it |
//! | `graph` | CUDA graphs: capture, and what replays keep alive |
//! | `timing` | when tasks ran: by CUPTI, or by events that lanes pass |
//! | `shutdown` | deadlines, and how a world that failed ends its waits |
//! | `kernels` | launches of the files in `kernels/`, compiled and cached |
//! | `gemm`, `linear` | matrix products for closures |
//!
//! `backend` is one rank as the executor drives it, `surface` what a closure gets.

// The driver, NVRTC, NCCL, cuBLASLt and CUPTI are C interfaces; each block says why it is sound.
#![allow(unsafe_code)]

mod backend;
mod bind;
mod compute_capability;
mod device;
mod failure;
pub(crate) mod gemm;
mod graph;
#[doc(hidden)]
pub mod kernels;
pub mod linear;
mod options;
mod shutdown;
mod surface;
mod timing;
mod transport;
mod world;

pub use backend::CudaBackend;
#[doc(hidden)]
pub use backend::CudaMemory;
#[doc(hidden)]
pub use bind::bound::CudaBound;
#[doc(hidden)]
pub use bind::lane::CudaStream;
pub use compute_capability::ComputeCapability;
/// The crate through which this backend speaks to the driver, in the version whose types appear in
/// [`CudaHandles`]. For a user's own kernels, streams and events; `docs/interop.md` says how they meet.
#[doc(no_inline)]
pub use cudarc;
pub use device::address::DeviceAddress;

pub use device::context::DeviceOrdinal;
pub use failure::CudaFailure;
#[doc(hidden)]
pub use graph::capture::CudaGraph;
pub use kernels::cache::KernelCache;
pub use kernels::compile::Architecture;
pub use options::{CudaOptions, Transport};
pub use surface::{CudaHandles, CudaSurface, DeviceSlice, DeviceSliceMut, on_cuda};
pub use world::ranks::CudaWorld;
