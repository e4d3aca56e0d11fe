//! Prefetch policies against each other: the choice of `auto`, beside schedules by hand.
//!
//! `cargo test --test plan policies:: -- --nocapture` prints the tables.

mod forecasts;
mod limits;
mod packing;
mod shapes;
mod sweep;
