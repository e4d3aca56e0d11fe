//! The kernels of one device, compiled and loaded when an op first needs them.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};
use rayon::prelude::*;

use super::cache::{KernelCache, Key};
use super::compile::{Architecture, OPTIONS, compile, version};
use super::source::{Family, HEADERS};
use crate::device::libraries::Library;
use crate::failure::CudaFailure;

/// The kernels of one context.
///
/// Every method that prepares a launch needs the context to be current, and may compile (seconds, the first
/// time on a machine) and allocate.
#[derive(Debug)]
pub struct Kernels {
    architecture: Architecture,
    driver: c_int,
    cache: KernelCache,
    modules: Mutex<[Option<Arc<Module>>; Family::ALL.len()]>,
}

impl Kernels {
    /// The kernels for the context that is current on this thread. Compiles nothing yet.
    ///
    /// # Errors
    /// [`CudaFailure`] without driver, compiler or current context, or for a device too old.
    pub fn for_current_context(cache: KernelCache) -> Result<Self, CudaFailure> {
        Library::Driver.open()?;
        Library::Compiler.open()?;
        let mut device: sys::CUdevice = 0;
        // SAFETY: the driver is present, and `device` outlives the call.
        unsafe { sys::cuCtxGetDevice(&raw mut device) }
            .result()
            .map_err(CudaFailure::driver("cuCtxGetDevice"))?;
        let attribute = |attribute| {
            // SAFETY: the device is the one the driver just named.
            unsafe { result::device::get_attribute(device, attribute) }
                .map(c_int::unsigned_abs)
                .map_err(CudaFailure::driver("cuDeviceGetAttribute"))
        };
        use sys::CUdevice_attribute as Attribute;
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        if major < 8 {
            return Err(CudaFailure::Refused(format!(
                "the kernels need compute capability 8.0 or newer, and this device has {major}.{minor}; use the CPU backend"
            )));
        }
        let mut driver = 0;
        // SAFETY: the driver is present, and `driver` outlives the call.
        unsafe { sys::cuDriverGetVersion(&raw mut driver) }
            .result()
            .map_err(CudaFailure::driver("cuDriverGetVersion"))?;
        Ok(Self {
            architecture: Architecture::best_for(major, minor)?,
            driver,
            cache,
            modules: Mutex::default(),
        })
    }

    /// Compiles the kernels of a family without a device, and forgets them.
    ///
    /// # Errors
    /// [`CudaFailure::Library`] without NVRTC; [`CudaFailure::Compile`].
    pub fn check(family: Family, architecture: Architecture) -> Result<(), CudaFailure> {
        compile(family.source(), architecture).map(drop)
    }

    /// Compiles all families at the same time and loads them, so that preparing launches need not.
    ///
    /// # Errors
    /// [`CudaFailure`].
    pub fn load_all(&self) -> Result<(), CudaFailure> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = Family::ALL.into_iter().filter(|family| modules[*family as usize].is_none());
        let missing: Vec<Family> = missing.collect();
        let codes: Result<Vec<_>, CudaFailure> =
            missing.par_iter().map(|family| Ok((*family, self.code(*family)?))).collect();
        // A context is current on a thread, so modules are loaded on this one.
        for (family, code) in codes? {
            modules[family as usize] = Some(Arc::new(Module::load(&code)?));
        }
        Ok(())
    }

    /// A kernel by name.
    pub(super) fn function(&self, family: Family, name: &CStr) -> Result<Function, CudaFailure> {
        let module = self.module(family)?;
        // SAFETY: the module is loaded for as long as `module` lives, which `Function` holds.
        let handle = unsafe { result::module::get_function(module.handle, name.to_owned()) }
            .map_err(CudaFailure::driver("cuModuleGetFunction"))?;
        Ok(Function { handle, module })
    }

    fn module(&self, family: Family) -> Result<Arc<Module>, CudaFailure> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut modules[family as usize];
        if let Some(module) = place {
            return Ok(Arc::clone(module));
        }
        let module = Arc::new(Module::load(&self.code(family)?)?);
        *place = Some(Arc::clone(&module));
        Ok(module)
    }

    fn code(&self, family: Family) -> Result<Vec<u8>, CudaFailure> {
        let source = family.source();
        let architecture = self.architecture.to_string();
        let versions = format!("driver {}, NVRTC {:?}", self.driver, version()?);
        let parts = [source.text, &architecture, &versions].into_iter();
        let parts = parts.chain(OPTIONS).chain(HEADERS.iter().map(|header| header.text));
        let key = Key::new(parts.map(str::as_bytes));
        self.cache.find_or_make(&key, || compile(source, self.architecture))
    }
}

/// A loaded module, unloaded when the last launch of its kernels is dropped.
pub(super) struct Module {
    handle: sys::CUmodule,
}

// SAFETY: the handle is a name the driver looks up; its calls are thread safe.
unsafe impl Send for Module {}
// SAFETY: as above; this process changes nothing through `&Module`.
unsafe impl Sync for Module {}

impl Module {
    fn load(code: &[u8]) -> Result<Self, CudaFailure> {
        // SAFETY: the code is a whole cubin, or PTX with its terminating zero: NVRTC made it, and the cache
        // keeps a checksum of it.
        let handle = unsafe { result::module::load_data(code.as_ptr().cast()) }
            .map_err(CudaFailure::driver("cuModuleLoadData"))?;
        Ok(Self { handle })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: loaded once, unloaded once here; no `Function` of it is left. If the context is gone, so is
        // the module, and a failure leaves nothing to be done.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Module({:p})", self.handle)
    }
}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) handle: sys::CUfunction,
    #[expect(dead_code, reason = "keeps the module loaded")]
    module: Arc<Module>,
}

// SAFETY: as for `Module`.
unsafe impl Send for Function {}
// SAFETY: as for `Module`.
unsafe impl Sync for Function {}
