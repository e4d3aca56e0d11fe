//! The step program: compute calls in order, each naming what it consumes and produces.
//!
//! Law: the unit is the consumption event. A weight may be used by any number of calls (tied
//! weights, replayed layers, recompute); nothing links weights to each other. Calls run in the
//! order they were added. A program is checked when it is built and never again.

mod accumulating;
mod accumulation;
mod builder;
mod call;
mod call_builder;
mod call_counts;
mod cost;
mod step;

pub use accumulation::Accumulation;
pub use builder::ProgramBuilder;
pub use call::{Call, Form, Gradient, Phase, Reuse, Use};
pub use call_builder::CallBuilder;
pub use cost::{CostHint, Math};
pub use step::StepProgram;
