//! The models and the text of the programs in `bin/`: two models in plain burn.
//!
//! The models know nothing of ranks, shards and formats. Of each model there are two programs, one for one device and
//! one for several ranks, which differ by a few lines:
//!
//! | model | one device | sharded |
//! |---|---|---|
//! | `model.rs`, a few layers | `bin/alone.rs` | `bin/sharded.rs` |
//! | `generation`, a transformer that continues texts | `bin/text_alone.rs` | `bin/text_sharded.rs` |

pub mod generation;
pub mod model;
pub mod text;

/// The programs of the page, which the library's own tests cannot compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/from-burn.md")]
mod from_burn {}
