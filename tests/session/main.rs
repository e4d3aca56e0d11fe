//! Sessions on the CPU backend, from start to close: steps, accumulation, replicas, tuning, failures, and the
//! bits of an unsharded trainer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod accumulation;
mod carried;
mod delayed_scaling;
mod dispatch;
mod end_to_end;
mod experts;
mod failures;
mod forgotten;
mod host_time;
mod hyperparameters;
mod live_tuning;
mod main_grads;
mod odd_vocabulary;
mod optimizer_conformance;
mod ranks;
mod replicas;
mod segments;
mod split_sessions;
mod split_sums;
mod split_tensor;
mod state_over_replicas;
mod trainer_conformance;
mod unsharded_reference;
mod unsharded_widths;
mod written_in_bf16;
