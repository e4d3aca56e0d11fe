//! Benchmark of the products of linear layers, in bf16 and in FP8 blocks: TFLOP/s of y, dx and dW on one GPU.
//!
//! `cargo bench --bench linear`; it says so and ends where there is no GPU. Shapes are tokens × inputs ×
//! outputs. In FP8 a product quantizes its activations first; the table gives the time of both together, that
//! of quantizing alone, and what is left for the product. A second table is of quantizing alone, in one
//! direction or both, and with GELU on the way. Times are CUDA events, medians; between runs the L2 cache is
//! flushed.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

#[allow(dead_code, reason = "each benchmark uses its part")]
mod cuda_device;
mod linear_cases;

fn main() {
    match cuda_device::Device::open() {
        Ok(device) => linear_cases::run(&device),
        Err(reason) => eprintln!("skipped: linear layers are not measured: {reason}"),
    }
}

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("skipped: built without the feature `cuda`");
}
