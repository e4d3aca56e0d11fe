//! The state of one lane thread: memory, peers and scratch of the task that it runs.

use std::sync::Arc;

use super::memory::Arena;
use super::snapshot::SnapshotPlace;
use super::surface::CpuSurface;
use super::world::{Places, Presence};
use crate::closures::Closures;
use warpweft_plan::layout::Lane;

/// Rank, arena, meeting places and closures of one lane.
pub(super) struct LaneContext {
    pub(super) lane: Lane,
    pub(super) presence: Arc<Presence>,
    pub(super) arena: Arc<Arena>,
    pub(super) snapshot: SnapshotPlace,
    /// Of a communicator's lane.
    pub(super) places: Option<Places>,
    pub(super) closures: Closures<CpuSurface>,
    /// Of an update that casts: amaxes and factors of blocks. As long as the longest weight needed so far.
    pub(super) blocks: Vec<f32>,
}
