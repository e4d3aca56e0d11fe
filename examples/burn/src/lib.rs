//! The models and the text of the programs in `bin/`: two models in plain burn.
//!
//! | model | program |
//! |---|---|
//! | `model.rs`, a few layers | `bin/alone.rs` |
//! | `generation`, a transformer that continues texts | `bin/text_alone.rs` |

pub mod generation;
pub mod model;
pub mod text;
