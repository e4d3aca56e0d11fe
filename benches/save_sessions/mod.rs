//! The sessions whose saves are timed: one rank of a stack of square layers, on the CPU or on a GPU.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;

pub(crate) use cpu::start as on_the_cpu;
#[cfg(feature = "cuda")]
pub(crate) use gpu::start as on_a_gpu;

#[cfg(not(feature = "cuda"))]
pub(crate) fn on_a_gpu(_tokens: usize) -> Result<(String, warpweft::prelude::Session), String> {
    Err("built without the feature `cuda`".to_owned())
}
