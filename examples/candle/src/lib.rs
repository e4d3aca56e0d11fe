//! The models and the text of the programs in `bin/`: two models in plain candle.
//!
//! The models know nothing of ranks, shards and formats. Of each model there are two programs, one for one device and
//! one for several ranks, which differ by a few lines:
//!
//! | model | one device | sharded |
//! |---|---|---|
//! | `model.rs`, a few layers | `bin/alone.rs` | `bin/sharded.rs` |
//! | `llama.rs`, a Llama | `bin/llama_alone.rs` | `bin/llama_sharded.rs` |

pub mod llama;
pub mod model;
pub mod text;

/// The programs of the page, which the library's own tests cannot compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-candle.md")]
mod from_candle {}
