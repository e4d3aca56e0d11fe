//! NCCL unique ids: the name under which the ranks of a communicator find each other.

use cudarc::nccl::{result, sys};

use crate::device::libraries::Library;
use crate::failure::CudaFailure;

/// Bytes of a name.
const BYTES: usize = 128;

/// The name under which ranks find each other's communicator.
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) sys::ncclUniqueId);

impl UniqueId {
    pub(crate) fn make() -> Result<Self, CudaFailure> {
        Library::Nccl.open()?;
        result::get_uniqueid().map(Self).map_err(CudaFailure::nccl("ncclGetUniqueId"))
    }

    /// As it travels.
    pub(crate) fn to_bytes(self) -> [u8; BYTES] {
        self.0.internal.map(|byte| byte.to_ne_bytes()[0])
    }

    /// As it arrived; `None` for any other number of bytes.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; BYTES] = bytes.try_into().ok()?;
        let internal = bytes.map(|byte| std::ffi::c_char::from_ne_bytes([byte]));
        Some(Self(sys::ncclUniqueId { internal }))
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UniqueId")
    }
}
