//! The skip flag of a step, as the vote leaves it.

use super::memory::{Arena, BorrowError};
use warpweft_plan::layout::Region;
use warpweft_plan::op::Vote;

/// Whether the vote, if the op carries one, skips the step.
pub(super) fn skips(arena: &Arena, vote: Option<Region>) -> Result<bool, BorrowError> {
    match vote {
        None => Ok(false),
        Some(region) => Ok(arena.read::<Vote>(region)?.iter().any(Vote::skips)),
    }
}
