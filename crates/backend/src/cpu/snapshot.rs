//! The snapshot of a rank: a second arena, which copies alone write.
//!
//! Law: it is reserved once. Its table of borrows refuses who reads what is being written.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use super::memory::Arena;
use super::op_error::OpError;
use crate::{BackendError, SnapshotMemory};
use warpweft_base::id::RankId;
use warpweft_plan::layout::Region;

/// Where lanes look for the snapshot of their rank, which is there from the first save on.
pub(super) type SnapshotPlace = Arc<OnceLock<Arc<Arena>>>;

/// The snapshot, for who reads it.
#[derive(Debug)]
pub(super) struct CpuSnapshot {
    pub(super) rank: RankId,
    pub(super) arena: Arc<Arena>,
}

impl CpuSnapshot {
    fn refusal(&self, region: Region, reason: impl Display) -> BackendError {
        BackendError::Host { rank: self.rank, bytes: region.bytes, reason: reason.to_string() }
    }

    fn same_length(&self, region: Region, bytes: usize) -> Result<(), BackendError> {
        if region.bytes == bytes {
            return Ok(());
        }
        Err(self.refusal(region, format_args!("the host has {bytes} bytes for it")))
    }
}

impl SnapshotMemory for CpuSnapshot {
    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), BackendError> {
        self.same_length(region, bytes.len())?;
        let refusal = |error| self.refusal(region, error);
        bytes.copy_from_slice(&self.arena.read::<u8>(region).map_err(refusal)?);
        Ok(())
    }

    fn write(&self, region: Region, bytes: &[u8]) -> Result<(), BackendError> {
        self.same_length(region, bytes.len())?;
        let refusal = |error| self.refusal(region, error);
        self.arena.write::<u8>(region).map_err(refusal)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Copies bytes of the arena into the snapshot.
pub(super) fn copy(arena: &Arena, place: &SnapshotPlace, from: Region, to: Region) -> Result<(), OpError> {
    if to.bytes == 0 {
        return Ok(());
    }
    let snapshot = place.get().ok_or(OpError::NoSnapshot)?;
    let source = arena.read::<u8>(from)?;
    snapshot.write::<u8>(to)?.copy_from_slice(&source);
    Ok(())
}
