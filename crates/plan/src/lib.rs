//! The planner of **warpweft**: from a declared model and step to a plan that is proven safe, pure data to data.
//!
//! It is not an executor: a plan names lanes and bytes, and `warpweft-backend` runs it.
//!
//! ```
//! use warpweft_format::{ElementType, Format, Orientation};
//! use warpweft_plan::model::{Form, Model, Phase, StepProgram};
//!
//! // One weight, whose rows are split over the ranks, and a step of one call that uses it.
//! let mut model = Model::builder();
//! let map = model.sharded("map", 32, 32, Format::NVFP4_2D)?;
//! let mut program = StepProgram::builder("train", &model.build());
//! let x = program.input("x", 32, ElementType::F32)?;
//! let call = program.call("fit", Phase::Backward).uses_dense(map);
//! call.gradient(map).reads(x).add()?;
//! assert!(program.build_training()?.updates_weights());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Law: nothing here starts a thread, reads a file or touches a device. A module imports only from those in earlier
//! lines of the table. No version number promises anything of this crate: use `warpweft`, which exports what a
//! user needs.
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
