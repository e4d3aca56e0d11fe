//! The CUDA backend: one GPU per rank.
//!
//! The libraries are opened when a world is made; without them the library says so and nothing else changes.

#![allow(unsafe_code)]

mod address;
mod context;
mod failure;
mod library;
mod memory;
mod stream;
mod surface;

pub use address::DeviceAddress;
pub use context::DeviceOrdinal;
pub use failure::CudaFailure;
pub use surface::{CudaHandles, CudaSurface, DeviceSlice, DeviceSliceMut};
