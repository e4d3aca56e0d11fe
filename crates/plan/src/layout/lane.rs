//! The lanes of a rank.
//!
//! Law: every rank has the same lanes with the same numbers. A lane carries one kind of work, and what is
//! issued on it runs in the order of issue.

use serde::Serialize;

use warpweft_base::id::{CommId, LaneId};

/// What a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum LaneKind {
    /// The user's closures, and what they wait for directly.
    Compute,
    /// Work on weights: quantize, assemble, transpose; norm and optimizer.
    Quantize,
    /// Work on gradients: round, add, sum, accumulate. What waits here for a reduction holds up no weight.
    Sum,
    /// Copies of state to the host, in a plan that takes a snapshot. They hold up nothing but the optimizer.
    Snapshot,
    /// The collectives of one communicator.
    Communicator(CommId),
}

impl std::fmt::Display for LaneKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Compute => formatter.write_str("compute"),
            Self::Quantize => formatter.write_str("quantize"),
            Self::Sum => formatter.write_str("sum"),
            Self::Snapshot => formatter.write_str("snapshot"),
            Self::Communicator(comm) => write!(formatter, "{comm}"),
        }
    }
}

/// One lane of every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Lane {
    /// Its number.
    pub id: LaneId,
    /// What it carries.
    pub kind: LaneKind,
}
