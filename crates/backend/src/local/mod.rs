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

pub use assemble::Assemble;
pub use assemble::Spread;
pub use collective::Scatter;
pub use collective::{Collective, Move, PlanePiece, Pull, Slices};
pub use delayed::{DelayedScale, RecordAmax};
pub use gradient::{Accumulate, CastVote, GradNorm, Round, SumGradient};
pub use optimizer::{Adam, Largest, Master, State};
pub use planes::{Dequantize, Transpose};
pub use quantize::{AmaxPart, FusedScale, PartialAmax, PartialCast};
pub use resolve::resolve;
pub use rule::Rule;

use std::sync::Arc;

use warpweft_plan::compute::BoundCall;
use warpweft_plan::layout::Region;

/// Why an op cannot be made local.
type Refusal = String;

/// One op, for one rank.
#[derive(Debug)]
pub enum LocalOp {
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
pub struct ComputeCall {
    pub call: Arc<BoundCall>,
    pub fault: Region,
}
