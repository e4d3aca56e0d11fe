//! The planner of **warpweft**: from a declared model and step to a plan that is proven safe, pure data to data.
//!
//! Law: nothing here starts a thread, reads a file or touches a device. A module imports only from those in earlier
//! lines of the table. No version number promises anything of this crate: use `warpweft`, which exports what a
//! trainer needs.
//!
//! | module | idea |
//! |---|---|
//! | [`model`] | what a user declares: weights, buffers, calls, step programs |
//! | [`policy`] | what can be chosen of a plan, value by value |
//! | [`op`] | the closed vocabulary of ops |
//! | [`layout`] | where things are in memory |
//! | [`compute`], [`cluster`] | the user's trait; a machine described by its numbers |
//! | [`plan`] | the passes, the plan, and its verifier, which shares nothing with the passes |

pub mod cluster;
pub mod compute;
pub mod layout;
pub mod model;
pub mod op;
pub mod plan;
pub mod policy;
