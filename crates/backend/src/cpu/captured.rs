//! A captured step: the actions of every lane, and where lanes part and meet.
//!
//! Law: a capture begins and ends on its first lane. The others begin once the first has reached it, and
//! the first ends once they have. So what the first lane did before is over when any of it runs, and all of
//! it is over when the first lane goes on. Inside it, nothing orders two lanes except the events that were
//! captured.

use std::sync::Arc;

use super::action::Action;
use super::bound::{BoundPlan, Event};
use crate::bell::Wake;
use warpweft_base::id::LaneId;

/// A capture, as its lanes run it once a step.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) plan: Arc<BoundPlan>,
    pub(super) lanes: Vec<CapturedLane>,
    /// Recorded when the first lane has reached the capture.
    pub(super) begun: Event,
}

/// One lane's part.
#[derive(Debug)]
pub(super) struct CapturedLane {
    pub(super) lane: LaneId,
    pub(super) actions: Vec<Action>,
    /// Recorded when the lane is done.
    pub(super) ended: Event,
}

impl Captured {
    pub(super) fn new(plan: Arc<BoundPlan>, lanes: impl Iterator<Item = (LaneId, Vec<Action>)>) -> Self {
        let lanes = lanes.map(|(lane, actions)| CapturedLane { lane, actions, ended: Event::default() });
        Self { plan, lanes: lanes.collect(), begun: Event::default() }
    }
}

impl Wake for Captured {
    fn wake(&self) {
        self.begun.wake();
        self.lanes.iter().for_each(|lane| lane.ended.wake());
    }
}
