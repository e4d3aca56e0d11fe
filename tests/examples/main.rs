//! The examples: the modules of the main job with the tests that stand in them, and all of them as programs.
//!
//! The mathematics of the main job: every backward against finite differences, its text, where its ranks run,
//! and how it writes its files. On GPUs every piece and the first losses against the CPU's, and the kernels
//! compiled. Without a GPU, or without NVRTC, each of those says on stderr that it was skipped.
//!
//! These tests stand beside the code in `examples/train`; cargo does not run tests of examples that it also
//! builds to be run, so they are gathered here, at the root, where modules of an example find each other.

#![allow(dead_code, reason = "the example uses more of its modules than their tests do")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod experts_kernels;
mod runs;
mod train_processes;

#[path = "../../examples/train/attention.rs"]
mod attention;
#[path = "../../examples/train/closure.rs"]
mod closure;
#[path = "../../examples/train/cuda/conformance.rs"]
mod conformance;
#[path = "../../examples/train/cuda/mod.rs"]
mod cuda;
#[path = "../../examples/train/data.rs"]
mod data;
#[path = "../../examples/train/embedding.rs"]
mod embedding;
#[path = "../../examples/train/gradients.rs"]
mod gradients;
#[path = "../../examples/train/head.rs"]
mod head;
#[path = "../../examples/train/host.rs"]
mod host;
#[path = "../../examples/train/init.rs"]
mod init;
#[path = "../../examples/train/cuda/losses.rs"]
mod losses;
#[path = "../../examples/train/mlp.rs"]
mod mlp;
#[path = "../../examples/train/model.rs"]
mod model;
#[path = "../../examples/train/ops.rs"]
mod ops;
#[path = "../../examples/train/outputs.rs"]
mod outputs;
#[path = "../../examples/train/placement.rs"]
mod placement;
#[path = "../../examples/train/product.rs"]
mod product;
#[path = "../../examples/train/program.rs"]
mod program;
#[path = "../../examples/train/start.rs"]
mod start;
#[path = "../../examples/train/cuda/turn.rs"]
mod turn;
