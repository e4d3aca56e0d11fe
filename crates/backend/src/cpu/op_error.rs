//! Errors of a task on a lane.

use super::memory::BorrowError;
use crate::BackendError;
use warpweft_base::id::RankId;
use warpweft_format::FormatError;

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpError {
    #[error("{0}; please report it with the plan's fingerprint")]
    Borrow(#[from] BorrowError),
    #[error(transparent)]
    Format(#[from] FormatError),
    /// There are no closures, or the optimizer failed.
    #[error(transparent)]
    Closures(BackendError),
    #[error("this lane has no communicator; collectives belong on one")]
    NoCommunicator,
    #[error("this rank has no snapshot; reserve it before a plan that takes one is bound")]
    NoSnapshot,
    #[error("{0} has not reserved its arena; reserve it before anything is enqueued")]
    NoArena(RankId),
    #[error(
        "a slice of a gradient is shorter than the rows it is summed into; please report it with the plan's fingerprint"
    )]
    Slice,
    /// The world is poisoned.
    #[error(transparent)]
    World(#[from] BackendError),
}
