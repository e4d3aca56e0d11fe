//! Observability of a session: traces and logs beside the step reports.
//!
//! Law: who looks changes nothing. No step waits for what is reported of it here.

pub(super) mod host_time;
mod live_bytes;
mod log;
pub(super) mod recorder;

pub use host_time::HostTime;
