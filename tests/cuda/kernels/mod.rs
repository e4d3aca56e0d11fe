//! The CUDA kernels against the CPU's functions, bit for bit; they skip, and say so, where there is no GPU.
//! That the kernels compile is checked wherever NVRTC is, GPU or not.

mod activation;
mod adam;
mod block_scaled;
mod codes;
mod compile;
mod dispatch;
mod exchange;
mod finite_check;
mod fragments;
mod golden;
mod gradients;
mod moves;
mod planes;
mod slices;
mod stages;
mod stream;
mod values;
