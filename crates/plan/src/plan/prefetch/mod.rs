//! Prefetch: when gathers and reductions are issued.
//!
//! Law: `demands` says *which* planes the program needs, from program order alone; a policy says *at which
//! stage* each is requested, and nothing else; [`crate::plan`]'s gather pass makes tasks of both. A stage is
//! a call: what is issued at stage s may begin once call s−1 has ended. Along the demands, in order of need,
//! stages never go back, so a communicator serves who needs first (deadline order).
//!
//! | file | idea |
//! |---|---|
//! | `choice` | the policies there are |
//! | `timetable` | what a policy comes to |
//! | `demands` | the planes each use needs |
//! | `depth` | n calls ahead |
//! | `bytes` | as early as a number of gathered bytes in flight allows |
//! | `deadline` | as late as is safe, by what everything takes |
//! | `together` | demands of one group have one stage |
//! | `auto` | the best of these within the budget, by what they are expected to take |
//!
//! By depth all demands of a call have one stage. Otherwise those of one group and one call have: by time the
//! earliest of their stages, by bytes and by hand the latest, when there is room for all. What one call demands
//! at one stage is one gather, and planes that are still there are not gathered again: see the gather pass.

mod auto;
mod bytes;
mod choice;
mod deadline;
mod demands;
mod depth;
mod timetable;
mod together;

pub use choice::GatherStart;

pub(super) use auto::{Trial, search};
pub(super) use deadline::Pace;
pub(super) use demands::{Demand, demands};
pub(super) use timetable::{Reductions, Timetable};
