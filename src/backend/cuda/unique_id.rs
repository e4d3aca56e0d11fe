//! The name under which the ranks of a communicator of NCCL find each other.

use cudarc::nccl::{result, sys};

use super::failure::CudaFailure;
use super::library::Library;

/// The name under which ranks find each other's communicator.
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub(super) sys::ncclUniqueId);

impl UniqueId {
    pub(super) fn make() -> Result<Self, CudaFailure> {
        Library::Nccl.open()?;
        result::get_uniqueid().map(Self).map_err(CudaFailure::nccl("ncclGetUniqueId"))
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UniqueId")
    }
}
