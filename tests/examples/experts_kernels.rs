//! The kernels of the mixture of experts, compiled. What they compute is compared with the CPU by a run of the example.

// The list of its kernels is written for a place among the modules that the main job has on a GPU.
use crate::cuda::launch;

#[path = "../../examples/mixture_of_experts/cuda/kernel.rs"]
mod kernel;

use kernel::{Kernel, SOURCE};

#[test]
fn the_kernels_of_the_experts_compile_for_every_architecture_the_readme_names() {
    let names: Vec<&str> = Kernel::ALL.iter().map(|kernel| kernel.name()).collect();
    crate::conformance::compiles_everywhere("the experts' kernels", SOURCE, &names);
}
