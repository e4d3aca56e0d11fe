//! Memory of the host into which a step copies a rank's state, for a save that training does not wait for.
//!
//! Law: a step that takes a snapshot writes it, between its first task and its end, or the host does at a step
//! boundary. So who reads it after that and before the next time reads what was copied. Keeping those steps apart from
//! readers is for who runs them.

use std::fmt;

use crate::BackendError;
use warpweft_plan::layout::Region;

/// The snapshot of one rank.
pub trait SnapshotMemory: fmt::Debug + Send + Sync {
    /// Copies bytes out, which a step copied in.
    ///
    /// # Errors
    /// [`BackendError::Host`] for bytes that are not there, or that a step is writing.
    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), BackendError>;

    /// Copies bytes in, at a step boundary, where no step did.
    ///
    /// # Errors
    /// As [`SnapshotMemory::read`].
    fn write(&self, region: Region, bytes: &[u8]) -> Result<(), BackendError>;
}
