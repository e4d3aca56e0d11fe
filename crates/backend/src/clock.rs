//! The one clock of a world: nanoseconds since it was made.
//!
//! Law: every interval of every rank is on this clock, so lanes of different ranks can be drawn above each
//! other.

use std::time::{Duration, Instant};

/// The clock of one world.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// The instant of nanosecond 0.
    pub const fn origin(self) -> Instant {
        self.origin
    }

    /// Nanoseconds since the origin.
    pub fn now(self) -> u64 {
        nanoseconds(self.origin.elapsed())
    }
}

/// A duration in whole nanoseconds; centuries saturate.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
