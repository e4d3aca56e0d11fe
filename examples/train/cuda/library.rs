//! The CUDA libraries and GPUs of this machine.
//!
//! Law: nothing calls a library before it was requested here.
#![allow(unsafe_code, reason = "the CUDA libraries are opened at run time")]

use std::panic::catch_unwind;

use cudarc::driver::{DriverError, result as driver, sys};

use super::compile::Architecture;
use super::failure::Failure;

/// A library the example opens at run time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Library {
    /// `libcuda`.
    Driver,
    /// `libnvrtc`.
    Compiler,
    /// `libcublas`.
    Blas,
}

impl Library {
    /// Must be asked before the library's first call: the binding panics on a missing one.
    ///
    /// # Errors
    /// [`Failure::Missing`].
    pub(crate) fn open(self) -> Result<(), Failure> {
        let (library, advice) = match self {
            Self::Driver => ("the CUDA driver (libcuda)", "install NVIDIA's driver, or say --device cpu"),
            Self::Compiler => {
                ("the kernel compiler (libnvrtc)", "install CUDA's NVRTC and put it on LD_LIBRARY_PATH")
            }
            Self::Blas => ("cuBLAS (libcublas)", "install it with CUDA and put it on LD_LIBRARY_PATH"),
        };
        // SAFETY: opening a library runs its initializers; these are NVIDIA's own, made to be opened.
        let present = catch_unwind(|| unsafe {
            match self {
                Self::Driver => sys::is_culib_present(),
                Self::Compiler => cudarc::nvrtc::sys::is_culib_present(),
                Self::Blas => cudarc::cublas::sys::is_culib_present(),
            }
        });
        if present.unwrap_or(false) { Ok(()) } else { Err(Failure::Missing { library, advice }) }
    }
}

/// The GPUs of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Gpus(Vec<(String, Architecture)>);

impl Gpus {
    /// How many there are.
    pub(crate) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Name and architecture of one.
    ///
    /// # Errors
    /// [`Failure::NoDevice`].
    pub(crate) fn of(&self, ordinal: u32) -> Result<&(String, Architecture), Failure> {
        let found = self.count();
        self.0.get(ordinal as usize).ok_or(Failure::NoDevice { ordinal, found })
    }
}

/// Looks for GPUs, and for the libraries the example needs on them.
///
/// # Errors
/// [`Failure::Missing`] and [`Failure::Refused`], the latter also where a driver has no GPU.
pub(crate) fn gpus() -> Result<Gpus, Failure> {
    for library in [Library::Driver, Library::Compiler, Library::Blas] {
        library.open()?;
    }
    driver::init().map_err(refused("cuInit"))?;
    let count = driver::device::get_count().map_err(refused("cuDeviceGetCount"))?;
    (0..count)
        .map(|ordinal| {
            let device = driver::device::get(ordinal).map_err(refused("cuDeviceGet"))?;
            let name = driver::device::get_name(device).map_err(refused("cuDeviceGetName"))?;
            Ok((name, architecture(device)?))
        })
        .collect::<Result<_, _>>()
        .map(Gpus)
}

fn architecture(device: sys::CUdevice) -> Result<Architecture, Failure> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
    };
    let number = |attribute| {
        // SAFETY: the driver gave out this device.
        let number = unsafe { driver::device::get_attribute(device, attribute) };
        number.map(i32::unsigned_abs).map_err(refused("cuDeviceGetAttribute"))
    };
    Ok(Architecture { major: number(MAJOR)?, minor: number(MINOR)? })
}

/// A refused call of the driver.
pub(super) fn refused(call: &'static str) -> impl Fn(DriverError) -> Failure {
    move |error| {
        let name = error.error_name().ok().map(|name| name.to_string_lossy().into_owned());
        Failure::Refused { call, code: name.unwrap_or_else(|| format!("{:?}", error.0)) }
    }
}
