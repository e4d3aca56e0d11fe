//! The layout of memory: the arena, its slots, the lanes, the cut of weights into shards.
//!
//! Law: a layout is the same on every rank, and addresses follow from it alone: region = offset from the
//! start of a rank's arena. *Resident* slots never move for the life of a session, across programs and plans.
//! *Transient* slots belong to one plan and may share bytes where the plan orders their tenants. Nothing is
//! allocated or moved after the arena is reserved.

mod arena;
mod binding;
mod content;
mod cut;
mod expert;
mod expert_number;
mod lane;
mod plane_columns;
mod region;
mod sizes;
mod state;
mod weight;
mod weights;

pub use arena::{ArenaLayout, Residency, Slot};
pub use binding::{Binding, OptimizerSettings, Settings};
pub use content::{Content, RoundStage};
pub use cut::PlaneCut;
pub use expert_number::{ExpertNumber, expert_named};
pub use lane::{Lane, LaneKind};
pub use plane_columns::PlaneColumns;
pub use region::{ALIGNMENT, MAX_ARENA, Region, aligned};
pub(crate) use sizes::SizesOf;
pub(crate) use state::STATES;
pub use state::{Delayed, StateLayout};
pub use weight::{PlaneRegions, WeightLayout};
pub use weights::{Bucket, Weights};
