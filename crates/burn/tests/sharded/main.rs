//! A module of burn, sharded: beside burn alone (`alike`), batches of all sizes (`batches`), where weights come from
//! and go to (`weights`), graphs kept and computed again, and dropout (`graphs`), and mistakes (`mistakes`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod alike;
mod batches;
mod graphs;
mod mistakes;
mod model;
mod weights;
