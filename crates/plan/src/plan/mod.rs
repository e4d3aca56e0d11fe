//! Planning: from a declared program to a verified plan, pure data in, pure data out.
//!
//! Law: planning knows no device, no rank number and no clock; what it knows of time are prices it is given.
//! The passes in `passes` write a draft in *issue order* T; dependences, addresses and fences then follow
//! from the accesses alone. [`verify()`] shares nothing with the passes: it recomputes everything from the
//! finished plan. No plan is handed out that it refuses, and a session runs no others. A copy that was edited has
//! not been verified again: backends trust what they bind (BK-1), so whoever drives one by hand asks first.
//!
//! - **PL-1** the same program, policy and mesh give byte-equal plans; [`StepPlan::fingerprint`]
//!   lets ranks compare theirs.
//! - **PL-5** T is a topological order of data, slot-reuse and release edges.

mod arena;
mod build;
mod carried;
mod choose;
mod collective_calls;
mod costs;
mod dependences;
mod dot;
mod draft;
mod error;
mod fences;
mod fingerprint;
mod forecast;
mod lanes;
mod occupancy;
mod other_model;
mod packing;
mod passes;
mod pieces;
mod place;
mod prefetch;
mod resident;
mod snapshot;
mod step_plan;
mod sums;
mod table;
mod verify;
mod why;

pub use carried::carried;
pub use costs::{Costs, Measured};
pub use dependences::{Edge, EdgeKind};
pub use error::PlanError;
pub use forecast::{Forecast, Slack, Span};
pub use pieces::{Piece, Pieces};
pub use prefetch::GatherStart;
pub use resident::ResidentLayout;
pub use step_plan::{BoundaryState, PlanBounds, Policy, StepPlan, Task};
pub use verify::{Proof, VerifyError, verify};
