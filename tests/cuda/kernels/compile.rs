//! The kernels compile for every generation, where NVRTC is.

use warpweft_cuda::kernels::{Family, Kernels};
use warpweft_cuda::{Architecture, CudaFailure};

fn check(major: u32, minor: u32) {
    let architecture = Architecture::of(major, minor);
    for family in Family::ALL {
        match Kernels::check(family, architecture) {
            Ok(()) => {}
            Err(failure @ CudaFailure::Library { .. }) => {
                crate::say_skipped(&format_args!("kernels are not compiled for {architecture}: {failure}"));
                return;
            }
            Err(failure) => panic!("{family:?}: {failure}"),
        }
    }
}

#[test]
fn every_kernel_compiles_for_ampere() {
    check(8, 0);
}

#[test]
fn every_kernel_compiles_for_hopper() {
    check(9, 0);
}

#[test]
fn every_kernel_compiles_for_blackwell_with_its_own_conversions() {
    check(10, 0);
}

#[test]
fn a_device_newer_than_the_compiler_gets_code_that_its_driver_can_translate() {
    match Architecture::best_for(99, 0) {
        Ok(architecture) => {
            assert!(matches!(architecture, Architecture::Virtual { .. }), "{architecture}");
            Kernels::check(Family::Cast, architecture).unwrap();
        }
        Err(failure @ CudaFailure::Library { .. }) => crate::say_skipped(&failure),
        Err(failure) => panic!("{failure}"),
    }
}
