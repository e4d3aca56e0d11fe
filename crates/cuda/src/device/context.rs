//! One GPU as this process holds it: its primary context.
//!
//! Laws:
//! - The primary context is shared with everything else that uses the device in this process (a user's
//!   own library, cuBLAS), so addresses and streams mean the same to all of them.
//! - A call that needs the context makes it current first; a thread may serve several devices.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{result, sys};

use super::libraries::Library;
use crate::compute_capability::ComputeCapability;
use crate::failure::CudaFailure;

/// The number of a GPU among those this process sees, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOrdinal(u32);

impl DeviceOrdinal {
    /// The GPU with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Every GPU this process sees, in order.
    ///
    /// # Errors
    /// [`CudaFailure::Library`] without a driver; [`CudaFailure::Call`] when the driver finds no device.
    pub fn all() -> Result<Vec<Self>, CudaFailure> {
        start_driver()?;
        let count = result::device::get_count().map_err(CudaFailure::driver("cuDeviceGetCount"))?;
        Ok((0..count.unsigned_abs()).map(Self).collect())
    }
}

impl DeviceOrdinal {
    /// What the GPU can do.
    ///
    /// # Errors
    /// [`CudaFailure`] without a driver or such a device.
    pub fn compute_capability(self) -> Result<ComputeCapability, CudaFailure> {
        start_driver()?;
        let number = i32::try_from(self.0).unwrap_or(i32::MAX);
        let device = result::device::get(number).map_err(CudaFailure::driver("cuDeviceGet"))?;
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let attribute = |attribute| {
            // SAFETY: the device is one the driver just gave.
            unsafe { result::device::get_attribute(device, attribute) }
                .map(i32::unsigned_abs)
                .map_err(CudaFailure::driver("cuDeviceGetAttribute"))
        };
        Ok(ComputeCapability { major: attribute(MAJOR)?, minor: attribute(MINOR)? })
    }

    /// Bytes of its memory, free or not.
    ///
    /// # Errors
    /// [`CudaFailure`] without a driver or such a device.
    pub fn memory_bytes(self) -> Result<u64, CudaFailure> {
        start_driver()?;
        let number = i32::try_from(self.0).unwrap_or(i32::MAX);
        let device = result::device::get(number).map_err(CudaFailure::driver("cuDeviceGet"))?;
        // SAFETY: the device is one the driver just gave.
        let bytes = unsafe { result::device::total_mem(device) };
        Ok(bytes.map_err(CudaFailure::driver("cuDeviceTotalMem"))? as u64)
    }
}

impl fmt::Display for DeviceOrdinal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GPU {}", self.0)
    }
}

/// The oldest driver that has every call this backend makes: CUDA 12.8.
const OLDEST_DRIVER: i32 = 12_080;

/// The CUDA that the driver is for: 1000 × major + 10 × minor.
pub(crate) fn driver_version() -> Result<i32, CudaFailure> {
    Library::Driver.open()?;
    let mut version = 0;
    // SAFETY: the driver is present, and `version` outlives the call, which needs no started driver.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }
        .result()
        .map_err(CudaFailure::driver("cuDriverGetVersion"))?;
    Ok(version)
}

/// Opens and starts the driver.
fn start_driver() -> Result<(), CudaFailure> {
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        let (major, minor) = (version / 1000, version % 1000 / 10);
        return Err(CudaFailure::Refused(format!(
            "this driver is for CUDA {major}.{minor}, and 12.8 is needed; install a newer one, or use the CPU backend"
        )));
    }
    result::init().map_err(CudaFailure::driver("cuInit"))
}

/// A retained primary context.
pub(crate) struct Context {
    ordinal: DeviceOrdinal,
    device: sys::CUdevice,
    context: sys::CUcontext,
    /// Whether a stream of its GPU, or of another of the same world, will not run out.
    abandoned: AtomicBool,
}

// SAFETY: a context handle is a name the driver looks up; the driver's calls are thread safe.
unsafe impl Send for Context {}
// SAFETY: as above; this process changes nothing but an atomic flag through `&Context`.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    ///
    /// # Errors
    /// [`CudaFailure`] without a driver or such a device.
    pub(crate) fn retain(ordinal: DeviceOrdinal) -> Result<Self, CudaFailure> {
        start_driver()?;
        let number = i32::try_from(ordinal.number()).unwrap_or(i32::MAX);
        let device = result::device::get(number).map_err(CudaFailure::driver("cuDeviceGet"))?;
        // SAFETY: the device is one the driver just gave.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(CudaFailure::driver("cuDevicePrimaryCtxRetain"))?;
        Ok(Self { ordinal, device, context, abandoned: AtomicBool::new(false) })
    }

    /// Makes this context the calling thread's.
    pub(crate) fn make_current(&self) -> Result<(), CudaFailure> {
        // SAFETY: the context is retained for as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }.map_err(CudaFailure::driver("cuCtxSetCurrent"))
    }

    /// From now on its memory, code, streams and events, and the context itself, are left to the end of the
    /// process: giving them back might wait for a stream that waits for ever.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    pub(crate) const fn ordinal(&self) -> DeviceOrdinal {
        self.ordinal
    }

    /// The device's name, such as `NVIDIA H200`.
    pub(crate) fn name(&self) -> String {
        result::device::get_name(self.device).unwrap_or_else(|_| self.ordinal.to_string())
    }

    /// The driver's name of the device, the same in every process of the host.
    pub(crate) fn gpu(&self) -> Result<[u8; 16], CudaFailure> {
        let uuid = result::device::get_uuid(self.device).map_err(CudaFailure::driver("cuDeviceGetUuid"))?;
        Ok(uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
    }

    /// Whether streams can wait for words of 64 bits, as ranks do that meet.
    pub(crate) fn can_meet(&self) -> Result<bool, CudaFailure> {
        let words = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS;
        // SAFETY: the device is one the driver gave.
        let can = unsafe { result::device::get_attribute(self.device, words) };
        can.map(|can| can != 0).map_err(CudaFailure::driver("cuDeviceGetAttribute"))
    }

    /// Whether the hardware can reach the memory of all these GPUs.
    pub(crate) fn can_reach_each(&self, others: &[Arc<Self>]) -> Result<bool, CudaFailure> {
        for other in others {
            if !self.can_reach(other.device)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the hardware can reach the memory of every other GPU this process sees.
    pub(crate) fn can_reach_all(&self) -> Result<bool, CudaFailure> {
        let count = result::device::get_count().map_err(CudaFailure::driver("cuDeviceGetCount"))?;
        for other in 0..count {
            let other = result::device::get(other).map_err(CudaFailure::driver("cuDeviceGet"))?;
            if !self.can_reach(other)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn can_reach(&self, peer: sys::CUdevice) -> Result<bool, CudaFailure> {
        let mut can = i32::from(self.device == peer);
        if can == 0 {
            // SAFETY: both devices come from the driver, and `can` outlives the call.
            unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, peer) }
                .result()
                .map_err(CudaFailure::driver("cuDeviceCanAccessPeer"))?;
        }
        Ok(can != 0)
    }

    /// Lets kernels and copies of this context reach the memory of `peer`. False where the hardware
    /// cannot.
    pub(crate) fn reach(&self, peer: &Self) -> Result<bool, CudaFailure> {
        if self.device == peer.device || !self.can_reach(peer.device)? {
            return Ok(self.device == peer.device);
        }
        self.make_current()?;
        // SAFETY: the peer's context is retained for as long as `peer` lives.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            other => other.result().map(|()| true).map_err(CudaFailure::driver("cuCtxEnablePeerAccess")),
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_abandoned() {
            return;
        }
        // SAFETY: retained once in `retain`, released once here. A failure leaves nothing to be done.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Context").field(&self.ordinal).finish()
    }
}
