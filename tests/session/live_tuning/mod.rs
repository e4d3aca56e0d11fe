//! Sessions that choose their plan by what their first steps take.
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
