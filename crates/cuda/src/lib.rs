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
//! One idea per file: `context`, `memory` and `stream` own what the driver gives. `kernels` are launches of
//! the files in `kernels/`. `bind` turns a plan's ops into commands. `transport` turns collectives into
//! commands: writes into peers' memory (`signal`), NCCL (`nccl`), or the one inside hosts and the other
//! between them. `lane` enqueues them, `watchdog` waits for them, and `release` ends what they wait for in
//! a world that has ended. `times` settles what says when tasks ran:
//! `cupti`, or the events of `clocks`, from which `chronicle` makes intervals. `gemm` has matrix products for
//! closures.

// The driver, NVRTC, NCCL, cuBLASLt and CUPTI are C interfaces; each block says why it is sound.
#![allow(unsafe_code)]

mod address;
mod backend;
mod bind;
mod bound;
mod cache;
mod chronicle;
mod clocks;
mod command;
mod communication;
mod compile;
mod context;
mod cupti;
mod describe;
mod device_table;
mod failure;
mod foreign;
pub(crate) mod gemm;
mod holdings;
mod hosts;
#[doc(hidden)]
pub mod kernels;
mod landing;
mod lane;
mod library;
pub mod linear;
mod machine;
mod members;
mod memory;
mod nccl;
mod options;
mod patience;
mod precedence;
mod prepare;
mod progress;
mod ranks;
mod recording;
mod release;
mod released;
mod rows;
mod script;
mod signal;
mod stream;
mod surface;
mod team;
mod timeline;
mod times;
mod transport;
mod unique_id;
mod watchdog;
mod world;

pub use address::DeviceAddress;
pub use backend::CudaBackend;
#[doc(hidden)]
pub use backend::CudaMemory;
#[doc(hidden)]
pub use bound::CudaBound;
pub use cache::KernelCache;
pub use compile::Architecture;
pub use context::{ComputeCapability, DeviceOrdinal};
/// The crate through which this backend speaks to the driver, in the version whose types appear in
/// [`CudaHandles`]. For a user's own kernels, streams and events; `docs/interop.md` says how they meet.
#[doc(no_inline)]
pub use cudarc;
pub use failure::CudaFailure;
#[doc(hidden)]
pub use lane::CudaStream;
pub use options::{CudaOptions, Transport};
pub use ranks::CudaWorld;
#[doc(hidden)]
pub use recording::CudaGraph;
pub use surface::{CudaHandles, CudaSurface, DeviceSlice, DeviceSliceMut, on_cuda};
