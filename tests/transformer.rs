//! The mathematics of the main job: every backward against finite differences, its text, where its ranks run,
//! and how it writes its files.
//!
//! The tests stand beside the code in `examples/train`; cargo does not run tests of examples that it
//! also builds to be run, so they are gathered here.
#![allow(dead_code, reason = "the example uses more of its modules than their tests do")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../examples/train/attention.rs"]
mod attention;
#[path = "../examples/train/data.rs"]
mod data;
#[path = "../examples/train/embedding.rs"]
mod embedding;
#[path = "../examples/train/gradients.rs"]
mod gradients;
#[path = "../examples/train/head.rs"]
mod head;
#[path = "../examples/train/init.rs"]
mod init;
#[path = "../examples/train/mlp.rs"]
mod mlp;
#[path = "../examples/train/model.rs"]
mod model;
#[path = "../examples/train/ops.rs"]
mod ops;
#[path = "../examples/train/outputs.rs"]
mod outputs;
#[path = "../examples/train/placement.rs"]
mod placement;
#[path = "../examples/train/product.rs"]
mod product;
