//! Delayed scaling: the scale of per-tensor FP8 from the amaxes of earlier steps.
//!
//! The cast of a step uses the scale the previous steps left; the amax of the step is reduced over the ranks
//! and enters the history afterwards. So amax and cast need one pass over the data and the reduction is off
//! the critical path. Values above `largest / scale` saturate.
//!
//! Law **DS-1**: every rank that records the same reduced amaxes has the same scale. An amax of zero, or one
//! that is not finite, is recorded but leaves the scale as it is when the history offers nothing better.

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

/// Scale and amax history of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct DelayedScaling {
    tensor: Fp8Tensor,
    choice: AmaxChoice,
    /// A ring; `next` is where the next amax goes. Unrecorded entries are 0.
    history: Vec<f32>,
    next: usize,
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
        Ok(Self { tensor, choice, history: vec![0.0; length], next: 0, scale })
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
        self.history[self.next] = amax;
        self.next = (self.next + 1) % self.history.len();
        let chosen = match self.choice {
            AmaxChoice::Latest => amax,
            AmaxChoice::Largest => self.history.iter().copied().fold(0.0, f32::max),
        };
        if chosen > 0.0 && chosen.is_finite() {
            self.scale = Fp8Scale::new(self.tensor.element, self.tensor.scale, self.tensor.epsilon, chosen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Epsilon, Fp8Element, ScaleRule};

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
    fn a_history_of_no_steps_is_refused() {
        assert!(DelayedScaling::new(TENSOR, AmaxChoice::Latest, 0).is_err());
    }
}
