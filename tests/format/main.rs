//! What a number is: the formats, from golden vectors and the reference up to lists of weights on ranks.

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
