//! Bounded polling on the host for what another thread does, such as an abort or the news of an end.
//!
//! Law: no wait here is longer than its patience, give or take a pause. Waiting for a device is the business of
//! [`super::watchdog`].

use std::time::{Duration, Instant};

/// Whether `condition` came true in time; it is checked again after every `pause`.
pub(crate) fn wait_until(patience: Duration, pause: Duration, condition: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !condition() {
        if begun.elapsed() > patience {
            return false;
        }
        std::thread::sleep(pause);
    }
    true
}
