//! The main job on GPUs: every piece and the first losses against the CPU's, and the kernels compiled.
//!
//! As with `transformer.rs`, the tests stand beside the code in `examples/train`. Without a GPU, or without
//! NVRTC, each says on stderr that it was skipped.
#![cfg(feature = "cuda")]
#![allow(dead_code, reason = "the example uses more of its modules than their tests do")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../examples/train/attention.rs"]
mod attention;
#[path = "../examples/train/closure.rs"]
mod closure;
#[path = "../examples/train/cuda/conformance.rs"]
mod conformance;
#[path = "../examples/train/cuda/mod.rs"]
mod cuda;
#[path = "../examples/train/embedding.rs"]
mod embedding;
#[path = "../examples/train/head.rs"]
mod head;
#[path = "../examples/train/host.rs"]
mod host;
#[path = "../examples/train/init.rs"]
mod init;
#[path = "../examples/train/cuda/losses.rs"]
mod losses;
#[path = "../examples/train/mlp.rs"]
mod mlp;
#[path = "../examples/train/model.rs"]
mod model;
#[path = "../examples/train/ops.rs"]
mod ops;
#[path = "../examples/train/placement.rs"]
mod placement;
#[path = "../examples/train/product.rs"]
mod product;
#[path = "../examples/train/program.rs"]
mod program;
#[path = "../examples/train/start.rs"]
mod start;
#[path = "../examples/train/cuda/turn.rs"]
mod turn;
