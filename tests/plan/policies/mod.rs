//! Prefetch policies against each other: what `auto` finds, and what hand schedules come to.
//!
//! `cargo test --test plan policies:: -- --nocapture` prints the tables.

mod forecasts;
mod limits;
mod packing;
mod shapes;
mod sweep;
