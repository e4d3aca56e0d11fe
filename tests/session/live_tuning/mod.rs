//! Live tuning: sessions choose their plan by the time of their first steps.
//!
//! Where a choice is judged, times are dictated or virtual, so that nothing here depends on how fast a machine is.

mod adoption;
mod bits;
mod choices;
mod dictated;
mod failures;
mod limits;
mod processes;
mod simulated;
