//! Hyperparameters of a step: learning rate, weight decay, betas.
//!
//! Law: no plan and no capture depends on it. Every weight has its own in the arena, which the user writes between
//! steps.

use bytemuck::{Pod, Zeroable};

use super::{NonNegative, ParameterGroup};

/// What an optimizer goes by in a step, for one weight. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Hyperparameters {
    /// Learning rate, a finite number from 0 on.
    pub learning_rate: f32,
    /// Weight decay λ, a finite number from 0 on.
    pub weight_decay: f32,
    /// Decay of the first moment, from 0 to below 1. A custom optimizer may mean by it what it likes.
    pub beta1: f32,
    /// Decay of the second moment, as of the first.
    pub beta2: f32,
}

impl Hyperparameters {
    /// Those of a weight that has `group` for its own, where these are for all.
    #[must_use]
    pub fn of_group(self, group: &ParameterGroup) -> Self {
        let ParameterGroup { weight_decay, learning_rate_scale, .. } = group;
        Self {
            learning_rate: self.learning_rate * learning_rate_scale.map_or(1.0, NonNegative::value),
            weight_decay: weight_decay.map_or(self.weight_decay, NonNegative::value),
            ..self
        }
    }

    /// The first that is out of its range: its name, what it is, and the range.
    #[must_use]
    pub fn out_of_range(&self) -> Option<(&'static str, f32, &'static str)> {
        let Self { learning_rate, weight_decay, beta1, beta2 } = *self;
        for (name, value) in [("learning rate", learning_rate), ("weight decay", weight_decay)] {
            if NonNegative::new(value).is_none() {
                return Some((name, value, "a finite number from 0 on"));
            }
        }
        let betas = [("beta1", beta1), ("beta2", beta2)];
        let (name, value) = betas.into_iter().find(|(_, value)| !(0.0..1.0).contains(value))?;
        Some((name, value, "from 0 to below 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Hyperparameters =
        Hyperparameters { learning_rate: 0.5, weight_decay: 0.25, beta1: 0.9, beta2: 0.999 };

    #[test]
    fn a_group_scales_the_learning_rate_and_replaces_the_weight_decay() {
        assert_eq!(ALL.of_group(&ParameterGroup::default()), ALL);
        let group = ParameterGroup {
            weight_decay: NonNegative::new(0.0),
            learning_rate_scale: NonNegative::new(0.5),
            ..ParameterGroup::default()
        };
        let expected = Hyperparameters { learning_rate: 0.25, weight_decay: 0.0, ..ALL };
        assert_eq!(ALL.of_group(&group), expected);
    }

    #[test]
    fn what_is_out_of_range_is_reported_by_its_name() {
        assert_eq!(ALL.out_of_range(), None);
        for (name, all) in [
            ("learning rate", Hyperparameters { learning_rate: -1.0, ..ALL }),
            ("weight decay", Hyperparameters { weight_decay: f32::INFINITY, ..ALL }),
            ("beta1", Hyperparameters { beta1: 1.0, ..ALL }),
            ("beta2", Hyperparameters { beta2: f32::NAN, ..ALL }),
        ] {
            assert_eq!(all.out_of_range().map(|(name, ..)| name), Some(name));
        }
    }
}
