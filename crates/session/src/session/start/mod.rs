//! Starts a session: what a builder is given becomes a policy, plans, ranks and first values.
//!
//! Law: everything is checked and planned before any thread starts; what fails leaves nothing running.

mod any_backend;
mod builder;
mod cancelled;
mod checks;
pub(super) mod costs;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod custom_optimizer;
mod faster;
pub mod initial;
pub(super) mod plans;
mod policy;
mod starting;

pub use builder::SessionBuilder;
