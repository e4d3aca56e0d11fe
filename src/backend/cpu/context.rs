//! What a lane runs its tasks with.

use std::sync::Arc;

use super::memory::Arena;
use super::rendezvous::Rendezvous;
use super::surface::CpuSurface;
use super::world::Presence;
use crate::backend::closures::Closures;
use crate::layout::Lane;

/// Rank, arena, meeting place and closures of one lane.
pub(super) struct LaneContext {
    pub(super) lane: Lane,
    pub(super) presence: Arc<Presence>,
    pub(super) arena: Arc<Arena>,
    pub(super) communicator: Option<Arc<Rendezvous>>,
    pub(super) closures: Closures<CpuSurface>,
}
