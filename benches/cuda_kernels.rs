//! Benchmark of every CUDA kernel against a device copy of the same bytes, in the same job.
//!
//! `cargo bench --bench cuda_kernels`; it says so and ends where there is no GPU. An argument,
//! `-- amax,cast`, leaves only the kernels whose names contain one of its parts. Between two runs of a launch
//! the L2 cache is flushed; times are CUDA events, medians. Percentages are of the copy's time: 100 means
//! that the kernel moves its minimal bytes as fast as the driver copies as many. Beside ours stand the
//! figures of TransformerEngine's kernels on the same machine, where they were measured.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

mod cuda_cases;
#[allow(dead_code, reason = "each benchmark uses its part")]
mod cuda_device;

fn main() {
    match cuda_device::Device::open() {
        Ok(device) => cuda_cases::run(&device),
        Err(reason) => eprintln!("skipped: the kernels are not measured: {reason}"),
    }
}
