//! The end of waits: progress that is watched, a deadline, and the release of what devices wait for.
//!
//! Law: no wait for a device or a peer outlives its deadline or its world, but for the three that the crate's head
//! names. Names of collectives are for the message that then says who stood where.

pub(crate) mod all_released;
pub(crate) mod bounded_wait;
pub(crate) mod collective_names;
pub(crate) mod progress;
pub(crate) mod release;
pub(crate) mod watchdog;
