//! A simulated link speed: communication that takes time on one machine.
//!
//! Law: a link only ever delays. With or without one, the same bytes arrive in the same order.

use std::time::Duration;

use crate::clock::nanoseconds;

/// How fast a link is that is slower than memory, so that communication on one machine takes time as it does between
/// machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Bytes a rank receives per second, on each communicator.
    pub bytes_per_s: f64,
    /// What every collective takes in addition.
    pub latency: Duration,
}

impl Pace {
    /// Whether anything ever arrives.
    pub(super) fn carries(&self) -> bool {
        self.bytes_per_s.is_finite() && self.bytes_per_s > 0.0
    }

    /// The least time that receiving `bytes` takes, in nanoseconds.
    pub(super) fn duration(&self, bytes: u64) -> u64 {
        let transfer = bytes as f64 / self.bytes_per_s * 1e9;
        nanoseconds(self.latency).saturating_add(transfer as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_takes_its_latency_and_the_time_of_its_bytes() {
        let link = Pace { bytes_per_s: 1e9, latency: Duration::from_micros(5) };
        assert_eq!(link.duration(0), 5_000);
        assert_eq!(link.duration(3_000), 8_000);
        let glacial = Pace { bytes_per_s: f64::MIN_POSITIVE, ..link };
        assert_eq!(glacial.duration(1), u64::MAX);
    }
}
