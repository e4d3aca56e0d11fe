//! The CUDA backend: one GPU per rank.
//!
//! The libraries are opened when a world is made; without them the library says so and nothing else changes.

#![allow(unsafe_code)]

mod address;
mod failure;
mod library;

pub use address::DeviceAddress;
pub use failure::CudaFailure;
