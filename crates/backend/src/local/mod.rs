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
mod custom_optimizer;
mod delayed;
mod filled;
mod gradient;
mod optimizer;
mod planes;
mod quantize;
mod resolve;
mod slices;

pub use assemble::Assemble;
pub use assemble::Spread;
pub use collective::Scatter;
pub use collective::{Collective, Combination, Move, PlanePiece, Pull};
pub use custom_optimizer::CustomOptimizer;
pub use delayed::{DelayedScale, RecordAmax};
pub use filled::{Filled, WrittenCounts};
pub use gradient::{
    Accumulate, CastVote, GradNorm, NormPart, NormSource, Round, RowSum, SumGradient, TakenSquares,
};
pub use optimizer::{Adam, Cast, Largest, Master, State};
pub use planes::{Dequantize, Transpose};
pub use quantize::{AmaxPart, FusedScale, PartialAmax, PartialCast};
pub use resolve::{ComputeCall, LocalOp, resolve};
pub use slices::Slices;

/// Why an op cannot be made local.
type Refusal = String;
