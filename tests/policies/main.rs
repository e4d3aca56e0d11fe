//! Prefetch policies against each other: what `auto` finds, and what hand schedules come to.
//!
//! `cargo test --test policies -- --nocapture` prints the tables.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod forecasts;
mod limits;
mod packing;
mod shapes;
mod sweep;
