//! A plan's fingerprint, for ranks to compare before step 0 (PL-1).
//!
//! Law: it is a function of the plan written as JSON: every field with its name, numbers in decimal,
//! f32 as the shortest decimal that reads back as the same value. So equal plans have equal
//! fingerprints in every process and build of one version of this crate, on every platform; across
//! versions nothing is promised. Two different plans share one by chance about once in 2^64. It
//! guards against ranks that were configured differently, not against forgery.

use std::io::{self, Write};

use super::StepPlan;

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
struct Fnv(u64);

impl Write for Fnv {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl StepPlan {
    /// A number that equal plans share, in any process of the same version of this crate, and others do
    /// not but for a chance of 2^-64.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
        // Neither this writer can fail nor a plan's types, which are plain structs and lists.
        let _ = serde_json::to_writer(&mut hash, self);
        hash.0
    }
}
