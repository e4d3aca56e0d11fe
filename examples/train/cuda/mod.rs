//! The same mathematics on a GPU: one per rank, kernels of our own and cuBLAS.
//!
//! Laws:
//! - The calls, their buffers and their formulas are those of the CPU; only sums run in another order.
//! - A call only enqueues on the stream it is given. Whatever is allocated, compiled or uploaded is so before the
//!   first step, so a step can be captured.
//! - A run is repeated bit for bit: no atomics, one stream and one workspace per cuBLAS handle.
//! - `unsafe` lives in `library.rs` (what this machine has), `compile.rs` (NVRTC) and `device.rs` (driver and
//!   cuBLAS) alone. Libraries are opened at run time; one that is missing is a [`Failure`] that names it.

pub(crate) mod attention;
pub(crate) mod common;
pub(crate) mod compile;
pub(crate) mod device;
pub(crate) mod embedding;
pub(crate) mod head;
pub(crate) mod kernel;
pub(crate) mod launch;
pub(crate) mod library;
pub(crate) mod mlp;
pub(crate) mod ops;
pub(crate) mod scratch;
pub(crate) mod span;

mod arithmetic;
mod failure;

pub(crate) use arithmetic::Gpu;
pub(crate) use failure::Failure;
pub(crate) use library::gpus;

use compile::{Cubin, compile_for};

/// The kernels for each of the GPUs, compiled once per architecture.
///
/// # Errors
/// A library or a GPU that is not there.
pub(crate) fn kernels(ordinals: &[u32]) -> Result<Vec<Cubin>, Failure> {
    compile_for(kernel::SOURCE, &gpus()?, ordinals)
}

/// Each of the GPUs by number and name.
///
/// # Errors
/// A library or a GPU that is not there.
pub(crate) fn names(ordinals: &[u32]) -> Result<Vec<String>, Failure> {
    let found = gpus()?;
    ordinals.iter().map(|ordinal| Ok(format!("GPU {ordinal} ({})", found.of(*ordinal)?.0))).collect()
}
