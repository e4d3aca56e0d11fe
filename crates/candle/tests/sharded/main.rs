//! A model in candle, sharded: beside candle alone (`alike`), batches of all sizes (`batches`), where weights come from
//! and go to (`weights`), graphs kept and computed again (`graphs`), and mistakes (`mistakes`). With the feature
//! `cuda` on GPUs too (`gpus`); where there are none, its tests say so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod alike;
mod batches;
#[cfg(feature = "cuda")]
mod gpus;
mod graphs;
mod mistakes;
mod model;
mod weights;
