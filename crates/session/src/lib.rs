//! Sessions of **warpweft**: what a user holds, and what drives a plan on ranks, step by step.
//!
//! It is not the planner and no device: `warpweft-plan` decides, and a backend carries out.
//!
//! ```
//! use warpweft_plan::model::{Model, Phase, StepProgram};
//! use warpweft_session::config::Config;
//! use warpweft_session::session::plan_program;
//!
//! // A step without weights, planned as a session on two ranks would.
//! let mut program = StepProgram::builder("measure", &Model::builder().build());
//! program.call("look", Phase::Forward).add()?;
//! let plan = plan_program(&program.build_evaluation()?, &Config::default(), 2)?;
//! assert_eq!(plan.name, "measure");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Law: a module imports only from those in earlier lines of the table. No version number promises anything of this
//! crate: use `warpweft`, which exports what a user needs.
//!
//! | module | idea |
//! |---|---|
//! | [`trace`], [`checkpoint`] | what people look at; weights and the state of an optimizer, in memory and in files |
//! | [`config`] | what an operator chooses |
//! | [`cluster`], [`tune`], [`actor`] | files of machines; which prefetch policy to try next; who owns state across steps |
//! | [`exec`] | the pump, capture, rank threads, agreement between ranks |
//! | [`session`] | the user's handle, and programs in virtual time |
//!
//! The feature `cuda` adds sessions on GPUs.

#[doc(hidden)]
pub mod actor;
pub mod checkpoint;
pub mod cluster;
pub mod config;
#[doc(hidden)]
pub mod exec;
pub mod session;
pub mod trace;
pub mod tune;
