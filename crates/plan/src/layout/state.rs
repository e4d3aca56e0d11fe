//! The memory layout of state that is kept from step to step.
//!
//! Law: the state layout is chosen once for all weights of a session, and sizes follow from it alone. No
//! number depends on it except through the rounding it names.

use half::bf16;
use serde::Serialize;

use crate::policy::{Masters, Moments, OptimizerShard};
use warpweft_base::id::StateId;
use warpweft_format::{AmaxChoice, Format, Via};

/// Element types of the optimizer state, and what is kept for the scales.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct StateLayout {
    /// Adam's moments, both; f32 for a custom optimizer.
    pub moments: Moments,
    /// Masters of sharded weights.
    pub masters: Masters,
    /// Delayed scaling of per-tensor FP8 weights; without it their scales are current.
    pub delayed: Option<Delayed>,
    /// Unless set, Adam updates the weights. Otherwise a custom optimizer does, which keeps so many lists of values
    /// beside every master.
    pub custom_states: Option<u8>,
    /// Over which ranks it is sharded.
    #[serde(skip_serializing_if = "OptimizerShard::is_dp_shard")]
    pub shard: OptimizerShard,
}

/// The lists of a custom optimizer, in words.
pub(crate) const STATES: [&str; 8] = [
    "first state",
    "second state",
    "third state",
    "fourth state",
    "fifth state",
    "sixth state",
    "seventh state",
    "eighth state",
];

/// Delayed scaling: which amaxes are remembered, and which of them counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Delayed {
    /// Steps an amax is remembered, at least 1.
    pub history: u32,
    /// The one that determines the scale.
    pub choice: AmaxChoice,
}

impl StateLayout {
    /// Lists of values that are kept beside the master of every weight that trains: two moments for Adam.
    #[must_use]
    pub fn lists(self) -> usize {
        self.custom_states.map_or(2, usize::from)
    }

    /// These lists, in their order.
    pub fn states(self) -> impl Iterator<Item = StateId> {
        (0..self.lists()).map(StateId::at)
    }

    /// What a list is, in words. The planner knows no names: those that a custom optimizer gives its states are the
    /// session's.
    #[doc(hidden)]
    #[must_use]
    pub const fn in_words(self, list: StateId) -> &'static str {
        const MOMENTS: [&str; 2] = ["first moment", "second moment"];
        let at = list.index();
        match self.custom_states {
            None if at < MOMENTS.len() => MOMENTS[at],
            Some(_) if at < STATES.len() => STATES[at],
            _ => "state that is not kept",
        }
    }

    /// Bytes of one element of a moment.
    #[must_use]
    pub const fn moment_bytes(self) -> usize {
        match self.moments {
            Moments::F32 => size_of::<f32>(),
            Moments::Bf16 => size_of::<bf16>(),
        }
    }

    /// The largest magnitude of a moment of which a finite one is kept.
    #[must_use]
    pub const fn largest_moment(self) -> f32 {
        match self.moments {
            Moments::F32 => Via::None.largest(Format::F32),
            Moments::Bf16 => Via::Bf16.largest(Format::Bf16),
        }
    }

    /// The moment that is kept of `value`.
    #[must_use]
    pub fn moment(self, value: f32) -> f32 {
        match self.moments {
            Moments::F32 => value,
            Moments::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_moment_is_the_last_one_of_which_a_finite_one_is_kept() {
        for moments in [Moments::F32, Moments::Bf16] {
            let layout = StateLayout { moments, ..StateLayout::default() };
            let largest = layout.largest_moment();
            assert!(layout.moment(largest).is_finite() && layout.moment(-largest).is_finite());
            assert!(!layout.moment(largest.next_up()).is_finite(), "{moments:?}");
        }
    }
}
