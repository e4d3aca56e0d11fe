//! What a session tells of its steps beside their reports: a trace, and a log.
//!
//! Law: who looks changes nothing. No step waits for what is told of it here.

pub(super) mod host_time;
mod live_bytes;
mod log;
pub(super) mod recorder;

pub use host_time::HostTime;
