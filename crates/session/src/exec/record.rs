//! A step as recordings: made piece by piece, run piece by piece.
//!
//! Laws:
//! - **PL-7** All tasks of a step are in exactly one recording or are dynamic calls: pieces are the plan's
//!   ([`warpweft_plan::plan::Pieces`]), and each is recorded or passed over here, in their order. Nothing runs while
//!   they are recorded, least of all dynamic calls.
//! - **EX-1** Recordings are made by the messages that issue a step; between two pieces all lanes join, on
//!   the device as in the issuer's clocks. A dynamic call is enqueued on the compute lane, which must
//!   therefore be the first: recordings begin and end there.
//! - Replaying sends no message and allocates nothing: one launch per segment, one task per dynamic call.

use super::Pump;
use crate::actor::ExecError;
use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::plan::{Piece, StepPlan};

/// One piece of a recorded step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded<G> {
    /// A recording.
    Segment(G),
    /// A call that is issued anew, between two recordings.
    Call(TaskId),
}

/// Records a step without running any of it.
pub(super) fn record<B: Backend>(
    backend: &B,
    streams: &mut [B::Stream],
    bound: &B::Bound,
    plan: &StepPlan,
    pump: &mut Pump<B>,
) -> Result<Vec<Recorded<B::Graph>>, ExecError> {
    let pieces = plan.pieces();
    let mut recorded = Vec::new();
    pump.begin()?;
    for (number, piece) in pieces.entries() {
        recorded.push(match piece {
            Piece::Segment => {
                backend.begin_capture(streams, bound)?;
                let issued = pump.issue_piece((&pieces, number), backend, streams, bound);
                // The recording ends whatever happened.
                let graph = backend.end_capture(streams, bound);
                issued?;
                Recorded::Segment(graph?)
            }
            Piece::Call(call) => {
                pump.pass_piece((&pieces, number), backend, streams, bound)?;
                Recorded::Call(call)
            }
        });
    }
    pump.end()?;
    Ok(recorded)
}

/// Runs a recorded step: launches its segments and enqueues the calls between them on the lane `compute`.
/// Returns how many segments.
pub(super) fn replay<B: Backend>(
    backend: &B,
    streams: &mut [B::Stream],
    bound: &B::Bound,
    compute: LaneId,
    recorded: &[Recorded<B::Graph>],
) -> Result<usize, BackendError> {
    let mut segments = 0;
    for piece in recorded {
        match piece {
            Recorded::Segment(graph) => {
                segments += 1;
                backend.launch(streams, bound, graph)?;
            }
            Recorded::Call(call) => backend.enqueue(&mut streams[compute.index()], bound, *call)?,
        }
    }
    Ok(segments)
}
