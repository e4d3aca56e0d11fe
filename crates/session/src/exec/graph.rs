//! Captures a step piece by piece, and replays it.
//!
//! Laws:
//! - **PL-7** All tasks of a step are in exactly one capture or are dynamic calls: pieces are the plan's
//!   ([`warpweft_plan::plan::Pieces`]), and each is captured or passed over here, in their order. Nothing runs while
//!   they are captured, least of all dynamic calls.
//! - **EX-1** Captures are made by the messages that issue a step; between two pieces all lanes join, on
//!   the device as in the issuer's clocks. A dynamic call is enqueued on the compute lane, which must
//!   therefore be the first: captures begin and end there.
//! - Replaying sends no message and allocates nothing: one launch per segment, one task per dynamic call.

use super::Pump;
use crate::actor::ExecError;
use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::plan::{Piece, StepPlan};

/// One piece of a captured step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Captured<G> {
    /// A capture.
    Segment(G),
    /// A call that is issued anew, between two captures.
    Call(TaskId),
}

/// Captures a step without running any of it.
pub(super) fn capture_step<B: Backend>(
    backend: &B,
    streams: &mut [B::Stream],
    bound: &B::Bound,
    plan: &StepPlan,
    pump: &mut Pump<B>,
) -> Result<Vec<Captured<B::Graph>>, ExecError> {
    let pieces = plan.pieces();
    let mut captured = Vec::new();
    pump.begin()?;
    for (number, piece) in pieces.entries() {
        captured.push(match piece {
            Piece::Segment => {
                backend.begin_capture(streams, bound)?;
                let issued = pump.issue_piece((&pieces, number), backend, streams, bound);
                // The capture ends whatever happened.
                let graph = backend.end_capture(streams, bound);
                issued?;
                Captured::Segment(graph?)
            }
            Piece::Call(call) => {
                pump.pass_piece((&pieces, number), backend, streams, bound)?;
                Captured::Call(call)
            }
        });
    }
    pump.end()?;
    Ok(captured)
}

/// Runs a captured step: launches its segments and enqueues the calls between them on the lane `compute`.
/// Returns how many segments.
pub(super) fn replay_step<B: Backend>(
    backend: &B,
    streams: &mut [B::Stream],
    bound: &B::Bound,
    compute: LaneId,
    captured: &[Captured<B::Graph>],
) -> Result<usize, BackendError> {
    let mut segments = 0;
    for piece in captured {
        match piece {
            Captured::Segment(graph) => {
                segments += 1;
                backend.launch(streams, bound, graph)?;
            }
            Captured::Call(call) => backend.enqueue(&mut streams[compute.index()], bound, *call)?,
        }
    }
    Ok(segments)
}
