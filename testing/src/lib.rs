//! Test support of `warpweft`: what several test programs share.
//!
//! For the integration tests of this workspace alone, so it is never published. A unit test inside of
//! `warpweft` cannot use it: it would have two kinds of every type.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(clippy::missing_errors_doc, reason = "what a hook or a closure returns, a test has chosen")]

mod allocator;
pub mod alone;
pub mod custom_adamw;
pub mod custom_optimizer;
pub mod golden_file;
pub mod heard;
pub mod meddler;
pub mod noise;
pub mod of_thread;
pub mod peak;
pub mod plan_books;
pub mod polled;
pub mod port;
pub mod products;
pub mod random_programs;
pub mod random_weight;
pub mod reference;
pub mod split;
pub mod squares;
pub mod staged;
pub mod steady;
pub mod terminal;
pub mod trainer;
pub mod wrapped;

pub use allocator::Allocator;
