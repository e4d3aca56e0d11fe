//! An op as one rank carries it out: regions, shapes and lengths, the same for every backend.
//!
//! Laws:
//! - A rank's share of every slot is worked out here, once, from the shard layout. Whatever a launch will
//!   index was checked against its slot here, so running it finds nothing missing; an op that does not fit
//!   its slots is refused with the reason.
//! - A local op is data. The backend decides on which memory and by which threads it runs.

mod assemble;
mod binder;
mod collective;
mod delayed;
mod gradient;
mod optimizer;
mod planes;
mod quantize;
mod resolve;
mod rule;

pub(super) use assemble::Assemble;
#[cfg(feature = "cuda")]
pub(super) use assemble::Spread;
#[cfg(feature = "cuda")]
pub(super) use collective::Scatter;
pub(super) use collective::{Collective, Move, PlanePiece, Pull, Slices};
pub(super) use delayed::{DelayedScale, RecordAmax};
pub(super) use gradient::{Accumulate, CastVote, GradNorm, Round, SumGradient};
pub(super) use optimizer::{Adam, Largest, Master, State};
pub(super) use planes::{Dequantize, Transpose};
pub(super) use quantize::{AmaxPart, FusedScale, PartialAmax, PartialCast};
pub(super) use resolve::resolve;
pub(super) use rule::Rule;

use std::sync::Arc;

use crate::compute::BoundCall;
use crate::layout::Region;

/// Why an op cannot be made local.
type Refusal = String;

/// One op, for one rank.
#[derive(Debug)]
pub(super) enum LocalOp {
    Copy {
        from: Region,
        to: Region,
    },
    Zero {
        region: Region,
    },
    /// Zeroes the fault word, so that closures run again.
    ClearFault {
        fault: Region,
    },
    Compute(ComputeCall),
    PartialAmax(PartialAmax),
    FusedScale(FusedScale),
    DelayedScale(DelayedScale),
    RecordAmax(RecordAmax),
    PartialCast(PartialCast),
    Assemble(Assemble),
    Transpose(Vec<Transpose>),
    Dequantize(Vec<Dequantize>),
    Round(Round),
    SumGradient(SumGradient),
    Accumulate(Accumulate),
    GradNorm(GradNorm),
    Vote(CastVote),
    Adam(Adam),
    Rule(Rule),
    Collective(Collective),
}

/// A call of the plan, and its fault word.
#[derive(Debug)]
pub(super) struct ComputeCall {
    pub(super) call: Arc<BoundCall>,
    pub(super) fault: Region,
}
