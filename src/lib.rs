//! **warpweft** plans one training step of a model whose weights are sharded and quantized,
//! proves the plan safe, and drives it so that every gather, transpose and reduction hides
//! behind compute.
//!
//! > The planner decides, the registers pace, the actors enqueue, the backend obeys, the trace
//! > shows.
//!
//! Rooms, from the ground up; a room imports only from those above it in this list:
//! [`id`] · [`mod@format`], [`model`], [`config`], [`trace`], [`rendezvous`] · [`op`], [`layout`], [`compute`], [`cluster`] ·
//! [`plan`] and [`backend`], which do not know each other · [`flow`], [`tune`] · [`actor`] · [`exec`] ·
//! [`session`], and `tool`, behind the `warpweft` program (feature `cli`). Beside them stands `linear`, matrix products
//! for closures on GPUs (feature `cuda`). `ARCHITECTURE.md` states the laws.

pub mod actor;
pub mod backend;
pub mod cluster;
pub mod compute;
pub mod config;
pub mod exec;
pub mod flow;
pub mod format;
pub mod id;
pub mod layout;
#[cfg(feature = "cuda")]
pub mod linear;
pub mod model;
pub mod op;
mod panics;
pub mod plan;
mod queue;
pub mod rendezvous;
pub mod session;
#[cfg(feature = "cli")]
pub mod tool;
pub mod trace;
pub mod tune;
