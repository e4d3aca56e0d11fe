//! A plan's fingerprint, for ranks to compare before step 0 (PL-1).
//!
//! Law: equal plans have equal fingerprints on every machine of a job; it is FNV-1a over the
//! plan's derived hash, a published function that does not change with the compiler's.

use std::hash::{Hash, Hasher};

use super::StepPlan;
use crate::layout::{OptimizerSettings, Settings};

/// FNV-1a, 64 bits (Fowler, Noll, Vo).
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

impl StepPlan {
    /// A number that two ranks share only if their plans are equal.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        self.name.hash(&mut hasher);
        for call in &self.calls {
            call.name.hash(&mut hasher);
            call.uses.hash(&mut hasher);
            call.grads.hash(&mut hasher);
            call.buffers.hash(&mut hasher);
        }
        self.buffers.hash(&mut hasher);
        self.updates_weights.hash(&mut hasher);
        self.weights.hash(&mut hasher);
        self.lanes.hash(&mut hasher);
        self.arena.hash(&mut hasher);
        self.tasks.hash(&mut hasher);
        self.events.hash(&mut hasher);
        self.entry.hash(&mut hasher);
        self.exit.hash(&mut hasher);
        let Settings { via, optimizer } = self.policy.settings;
        via.hash(&mut hasher);
        let OptimizerSettings { mode, beta1, beta2, epsilon, weight_decay, bias_correction, max_norm } =
            optimizer;
        mode.hash(&mut hasher);
        bias_correction.hash(&mut hasher);
        for constant in [beta1, beta2, epsilon, weight_decay, max_norm] {
            constant.to_bits().hash(&mut hasher);
        }
        hasher.finish()
    }
}
