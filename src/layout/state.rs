//! How the optimizer's state lies in memory.
//!
//! Law: the state layout is chosen once for all weights of a session, and sizes follow from it
//! alone; no number depends on it but through the rounding it names.

use half::bf16;
use serde::Serialize;

use super::Weights;
use crate::config::{Masters, Moments};
use crate::format::Format;
use crate::id::BucketId;
use crate::model::Placement;

/// Element types of the optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct StateLayout {
    /// Both Adam moments.
    pub moments: Moments,
    /// Masters of sharded weights.
    pub masters: Masters,
}

impl StateLayout {
    /// Bytes of one element of a moment.
    #[must_use]
    pub const fn moment_bytes(self) -> usize {
        match self.moments {
            Moments::F32 => size_of::<f32>(),
            Moments::Bf16 => size_of::<bf16>(),
        }
    }
}

impl Weights {
    /// Are the bucket's shards the upper halves of its masters? Then it has no f32 masters, nothing is cast, and
    /// its shards are always at the masters' version.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn splits_masters(&self, bucket: BucketId) -> bool {
        let members = self.bucket(bucket);
        self.state.masters == Masters::Bf16Remainder
            && members.placement == Placement::Sharded
            && members.format == Format::Bf16
    }
}
