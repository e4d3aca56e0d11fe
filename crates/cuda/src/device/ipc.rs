//! Memory of ranks in other processes of this host, mapped into this one by CUDA IPC.
//!
//! Laws:
//! - A process lends an allocation by a handle, which another process of the host opens in the context that
//!   will reach it. What was opened is closed once, and before the owner frees it (see the end of a
//!   [`crate::world::World`]).
//! - The allocation is separate and whole pages long, because the driver maps whole pages.

use std::sync::Arc;

use cudarc::driver::sys;

use super::address::DeviceAddress;
use super::context::Context;
use super::memory::DeviceMemory;
use crate::failure::CudaFailure;

/// Bytes of a page of device memory.
pub(crate) const PAGE: usize = 2 << 20;

/// Bytes of a handle.
pub(crate) const HANDLE: usize = 64;

/// The name under which other processes of this host open `memory`.
pub(crate) fn lend(memory: &DeviceMemory) -> Result<[u8; HANDLE], CudaFailure> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE] };
    // SAFETY: the allocation is alive and came from `cuMemAlloc`; `handle` outlives the call.
    unsafe { sys::cuIpcGetMemHandle(&raw mut handle, memory.address().number()) }
        .result()
        .map_err(CudaFailure::driver("cuIpcGetMemHandle"))?;
    Ok(handle.reserved.map(|byte| byte.to_ne_bytes()[0]))
}

/// An allocation of another process.
#[derive(Debug)]
pub(crate) struct ForeignMemory {
    context: Arc<Context>,
    address: DeviceAddress,
}

impl ForeignMemory {
    /// Opens what another process lent, for the work of `context`.
    pub(crate) fn open(context: &Arc<Context>, handle: [u8; HANDLE]) -> Result<Self, CudaFailure> {
        context.make_current()?;
        let handle =
            sys::CUipcMemHandle { reserved: handle.map(|byte| std::ffi::c_char::from_ne_bytes([byte])) };
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        let mut address = 0;
        // SAFETY: the handle was made by the driver of this host in a process that keeps the allocation until
        // all others have closed it; `address` outlives the call.
        unsafe { sys::cuIpcOpenMemHandle_v2(&raw mut address, handle, flags) }
            .result()
            .map_err(CudaFailure::driver("cuIpcOpenMemHandle"))?;
        Ok(Self { context: Arc::clone(context), address: DeviceAddress::new(address) })
    }

    /// Where it begins in this process.
    pub(crate) const fn address(&self) -> DeviceAddress {
        self.address
    }
}

impl Drop for ForeignMemory {
    fn drop(&mut self) {
        if !self.context.is_abandoned() && self.context.make_current().is_ok() {
            // SAFETY: opened once in `open` under this context, closed once here, when no lane is left that
            // could reach it.
            let _ = unsafe { sys::cuIpcCloseMemHandle(self.address.number()) };
        }
    }
}
