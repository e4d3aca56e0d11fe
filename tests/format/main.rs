//! The formats: golden vectors, the scalar reference, and lists of weights on ranks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod conformance;
mod directions;
mod gather;
mod golden;
mod master_weights;
mod partial_golden;
mod properties;
mod reference;
mod rows;
mod scale_lists;
