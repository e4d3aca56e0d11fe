//! Checkpoints and files of weights: contents, failed saves, and refused input.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod background;
mod engines;
mod experts;
mod files;
#[cfg(unix)]
mod foreign;
mod hub_folders;
mod parts;
mod pretrained;
mod tensor_parallel;
mod weights_alone;
