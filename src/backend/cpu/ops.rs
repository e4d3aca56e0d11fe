//! What a lane runs: one bound launch for every op.
//!
//! Law: a launch holds regions and lengths of this rank; [`Launch::run`] is one `match` and decides
//! nothing. Ops that carry a vote do nothing when it skips the step, on every rank alike.

use super::bound::BoundTask;
use super::closures::ComputeCall;
use super::collective::Collective;
use super::gradient::{Accumulate, CastVote, GradNorm};
use super::lane::LaneContext;
use super::memory::{Arena, BorrowError};
use super::optimizer::Adam;
use super::planes::{Dequantize, Transpose};
use super::quantize::{FusedScale, PartialAmax, PartialCast};
use crate::backend::{BackendError, ClosureFault};
use crate::format::FormatError;
use crate::id::RankId;
use crate::layout::Region;
use crate::op::Vote;

/// One op, bound to the arena of one rank.
#[derive(Debug)]
pub(super) enum Launch {
    Copy { from: Region, to: Region },
    Zero { region: Region },
    Compute(ComputeCall),
    PartialAmax(PartialAmax),
    FusedScale(FusedScale),
    PartialCast(PartialCast),
    Transpose(Transpose),
    Dequantize(Dequantize),
    Accumulate(Accumulate),
    GradNorm(GradNorm),
    Vote(CastVote),
    Adam(Adam),
    Collective(Collective),
}

/// What is left to tell of a task that is done.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// When the last rank of a collective arrived.
    pub(super) joined: Option<u64>,
    /// The fault a closure ended in.
    pub(super) fault: Option<ClosureFault>,
}

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpError {
    #[error(transparent)]
    Borrow(#[from] BorrowError),
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("this lane was opened without closures; hand them to the lane that computes")]
    NoClosures,
    #[error("this lane has no communicator; collectives belong on one")]
    NoCommunicator,
    #[error("{0} has not reserved its arena")]
    NoArena(RankId),
    /// The world is poisoned.
    #[error(transparent)]
    World(#[from] BackendError),
}

impl Launch {
    /// Carries the op out.
    pub(super) fn run(&self, task: &BoundTask, context: &mut LaneContext) -> Result<Done, OpError> {
        let arena = &*context.arena;
        match self {
            Self::Copy { from, to } => copy(arena, *from, *to)?,
            Self::Zero { region } => arena.write::<u8>(*region)?.fill(0),
            Self::Compute(call) => {
                let fault = context.closures.run(context.presence.rank, &context.arena, call)?;
                return Ok(Done { fault, ..Done::default() });
            }
            Self::PartialAmax(amax) => amax.run(arena)?,
            Self::FusedScale(scale) => scale.run(arena)?,
            Self::PartialCast(cast) => cast.run(arena)?,
            Self::Transpose(transpose) => transpose.run(arena)?,
            Self::Dequantize(dequantize) => dequantize.run(arena)?,
            Self::Accumulate(accumulate) => accumulate.run(arena)?,
            Self::GradNorm(norm) => norm.run(arena)?,
            Self::Vote(vote) => vote.run(arena)?,
            Self::Adam(adam) => adam.run(arena)?,
            Self::Collective(collective) => {
                let joined = collective.run(task, context)?;
                return Ok(Done { joined: Some(joined), ..Done::default() });
            }
        }
        Ok(Done::default())
    }
}

fn copy(arena: &Arena, from: Region, to: Region) -> Result<(), BorrowError> {
    let source = arena.read::<u8>(from)?;
    arena.write::<u8>(to)?.copy_from_slice(&source);
    Ok(())
}

/// Does the vote, if the op carries one, skip the step?
pub(super) fn skips(arena: &Arena, vote: Option<Region>) -> Result<bool, BorrowError> {
    match vote {
        None => Ok(false),
        Some(region) => Ok(arena.read::<Vote>(region)?.iter().any(Vote::skips)),
    }
}
