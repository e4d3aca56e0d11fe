//! Delayed scaling: the scale of per-tensor FP8 from the amaxes of earlier steps.
//!
//! The cast of a step uses the scale that the previous steps left. The step's amax is reduced over the ranks
//! and enters the history afterwards. So amax and cast need one pass over the data, and the reduction is off
//! the critical path. Values above `largest / scale` saturate.
//!
//! Law **DS-1**: every rank that records the same reduced amaxes has the same scale. An amax of zero, or one
//! that is not finite, is recorded but leaves the scale as it is when the history offers nothing better.
//!
//! The two halves, [`delayed_scale`] and [`record_amax`], work on slices the caller keeps; [`DelayedScaling`]
//! keeps them itself. Source: delayed scaling of TransformerEngine, without its margin, which is 0 there.

use super::FormatError;
use super::format::Fp8Tensor;
use super::fp8::Fp8Scale;

/// Which recorded amax determines the scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AmaxChoice {
    /// The largest of the history.
    #[default]
    Largest,
    /// The one recorded last.
    Latest,
}

/// The scale of the coming cast, from the amaxes recorded so far and the scale in use.
///
/// `history` has the latest amax first; entries without one are 0. `in_use` is the encode factor of the
/// previous cast, and stays when the chosen amax is 0 or not finite.
#[must_use]
pub fn delayed_scale(tensor: Fp8Tensor, choice: AmaxChoice, history: &[f32], in_use: f32) -> Fp8Scale {
    delayed_scale_of_group(tensor, choice, history, history.len(), in_use)
}

/// The scale that several weights share in the coming cast: [`delayed_scale`] of the largest amax that is
/// chosen of theirs. `histories` are `[weights, length]`.
#[must_use]
pub fn delayed_scale_of_group(
    tensor: Fp8Tensor,
    choice: AmaxChoice,
    histories: &[f32],
    length: usize,
    in_use: f32,
) -> Fp8Scale {
    let chosen = |history: &[f32]| match choice {
        AmaxChoice::Latest => history.first().copied().unwrap_or(0.0),
        AmaxChoice::Largest => history.iter().copied().fold(0.0, f32::max),
    };
    let chosen = histories.chunks_exact(length.max(1)).map(chosen).fold(0.0, f32::max);
    if chosen > 0.0 && chosen.is_finite() {
        Fp8Scale::new(tensor.element, tensor.scale, tensor.epsilon, chosen)
    } else {
        Fp8Scale { encode: in_use, decode: 1.0 / in_use }
    }
}

/// Puts the amax of the masters just cast, already reduced over the ranks, at the front of `history`. The
/// oldest entry is dropped.
pub fn record_amax(history: &mut [f32], amax: f32) {
    history.rotate_right(1);
    if let Some(latest) = history.first_mut() {
        *latest = amax;
    }
}

/// What delayed scaling keeps of one weight between casts: enough to cast the same masters to the same bytes
/// again, and to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayedState {
    /// The encode factor of the last cast.
    pub scale: f32,
    /// Amaxes, the latest first; unrecorded entries are 0.
    pub history: Vec<f32>,
}

impl DelayedState {
    /// Scale 1 and an empty history of `length` steps.
    #[must_use]
    pub fn new(length: usize) -> Self {
        Self { scale: 1.0, history: vec![0.0; length] }
    }

    /// Whether a cast can use the scale, and later scales can follow from the history. The scale must be
    /// positive and normal, because the reciprocal of a subnormal number may be infinite. The reciprocal of
    /// the largest scales is subnormal; such scales are in use for weights whose amax is tiny.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.scale > 0.0 && self.scale.is_normal() && self.no_amax().is_none()
    }

    /// The first entry of the history that is the amax of no finite masters: infinite, negative, or no number.
    #[must_use]
    pub fn no_amax(&self) -> Option<f32> {
        self.history.iter().copied().find(|amax| !(amax.is_finite() && *amax >= 0.0))
    }

    /// The same history for casts to `tensor`, with the scale that follows from it, or 1 where none follows.
    /// Amaxes are those of the masters and fit every format; a scale fits only the format it was made for.
    #[must_use]
    pub fn for_tensor(&self, tensor: Fp8Tensor, choice: AmaxChoice) -> Self {
        let scale = delayed_scale(tensor, choice, &self.history, 1.0).encode;
        Self { scale, history: self.history.clone() }
    }

    /// The same with a history of `length` steps: the oldest entries are dropped, or empty ones are added.
    #[must_use]
    pub fn with_length(&self, length: usize) -> Self {
        let mut history = self.history.clone();
        history.resize(length, 0.0);
        Self { scale: self.scale, history }
    }
}

/// Scale and amax history of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayedScaling {
    tensor: Fp8Tensor,
    choice: AmaxChoice,
    /// The latest first; unrecorded entries are 0.
    history: Vec<f32>,
    scale: Fp8Scale,
}

impl DelayedScaling {
    /// An empty history of `length` steps and scale 1.
    ///
    /// # Errors
    /// [`FormatError::Length`] when `length` is 0.
    pub fn new(tensor: Fp8Tensor, choice: AmaxChoice, length: usize) -> Result<Self, FormatError> {
        if length == 0 {
            return Err(FormatError::Length { what: "the amax history", expected: 1, actual: 0 });
        }
        let scale = Fp8Scale { encode: 1.0, decode: 1.0 };
        Ok(Self { tensor, choice, history: vec![0.0; length], scale })
    }

    /// The format whose elements are scaled.
    #[must_use]
    pub fn tensor(&self) -> Fp8Tensor {
        self.tensor
    }

    /// The scale for the cast of this step.
    #[must_use]
    pub fn scale(&self) -> Fp8Scale {
        self.scale
    }

    /// Records the amax of this step, already reduced over the ranks, and computes the scale of the next.
    pub fn record(&mut self, amax: f32) {
        record_amax(&mut self.history, amax);
        self.scale = delayed_scale(self.tensor, self.choice, &self.history, self.scale.encode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epsilon, Fp8Element, ScaleRule};

    const TENSOR: Fp8Tensor =
        Fp8Tensor { element: Fp8Element::E4m3, scale: ScaleRule::Float32, epsilon: Epsilon::ZERO };

    #[test]
    fn the_scale_lags_one_step_behind_the_amax() {
        let mut delayed = DelayedScaling::new(TENSOR, AmaxChoice::Latest, 1).unwrap();
        assert_eq!(delayed.scale().encode, 1.0);
        delayed.record(2.0);
        assert_eq!(delayed.scale(), Fp8Scale { encode: 224.0, decode: 1.0 / 224.0 });
    }

    #[test]
    fn the_largest_amax_counts_until_it_leaves_the_history() {
        let mut delayed = DelayedScaling::new(TENSOR, AmaxChoice::Largest, 2).unwrap();
        let scales = [4.0, 1.0, 1.0].map(|amax| {
            delayed.record(amax);
            delayed.scale().encode
        });
        assert_eq!(scales, [112.0, 112.0, 448.0]);
    }

    #[test]
    fn an_amax_without_a_scale_keeps_the_last_one() {
        for choice in [AmaxChoice::Largest, AmaxChoice::Latest] {
            let mut delayed = DelayedScaling::new(TENSOR, choice, 1).unwrap();
            delayed.record(2.0);
            for amax in [0.0, f32::INFINITY, f32::NAN] {
                delayed.record(amax);
                assert_eq!(delayed.scale().encode, 224.0);
            }
        }
    }

    #[test]
    fn a_state_with_an_entry_that_is_no_amax_is_not_usable() {
        let mut state = DelayedState { scale: 2.0, history: vec![f32::MAX, 0.0, 1e-45] };
        assert!(state.is_usable());
        for amax in [f32::INFINITY, f32::NAN, -1.0] {
            state.history[1] = amax;
            assert!(
                !state.is_usable() && state.no_amax().is_some_and(|found| found.to_bits() == amax.to_bits())
            );
        }
    }

    #[test]
    fn a_history_of_no_steps_is_refused() {
        assert!(DelayedScaling::new(TENSOR, AmaxChoice::Latest, 0).is_err());
    }
}
