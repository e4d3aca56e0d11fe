//! Checkpoints and files of weights: what is in them, what a failed save leaves, and what is refused.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod engines;
mod files;
#[cfg(unix)]
mod foreign;
mod parts;
mod pretrained;
