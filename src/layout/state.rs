//! How the optimizer's state lies in memory.
//!
//! Law: the state layout is chosen once for all weights of a session, and sizes follow from it
//! alone; no number depends on it but through the rounding it names.

use half::bf16;
use serde::Serialize;

use crate::config::Moments;

/// Element types of the optimizer state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct StateLayout {
    /// Both Adam moments.
    pub moments: Moments,
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
