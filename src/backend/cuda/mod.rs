//! The CUDA backend: one GPU per rank.
//!
//! The libraries are opened when a world is made; without them the library says so and nothing else changes.

#![allow(unsafe_code)]

mod address;
mod cache;
mod compile;
mod device_table;
mod failure;
pub mod kernels;
mod library;

pub use address::DeviceAddress;
pub use cache::KernelCache;
pub use compile::Architecture;
pub use failure::CudaFailure;
