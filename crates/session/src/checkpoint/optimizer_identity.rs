//! The optimizer that wrote the state of a checkpoint, by its name and its states' names.
//!
//! Law: as many lists of values as a session keeps are not yet state that it can go on from: those of another
//! optimizer have the same shape, and another meaning. So a checkpoint says whose they are, and what each is called.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::CheckpointError;
use warpweft_base::errors::{listed, shown};
use warpweft_base::id::StateId;
use warpweft_plan::compute::{Optimizer, Surface};

/// The optimizer that updated the weights of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OptimizerIdentity {
    /// The library's Adam.
    Adam,
    /// A custom optimizer, of a file of before files said which.
    #[serde(rename = "unnamed_custom", alias = "own_rule")]
    Unnamed,
    /// A custom optimizer ([`Optimizer`]).
    Custom {
        /// [`Optimizer::name`].
        name: String,
        /// [`Optimizer::states`]: what the lists of [`WeightState::states`](super::WeightState::states) are called.
        states: Vec<String>,
    },
}

impl OptimizerIdentity {
    /// This custom optimizer.
    pub(crate) fn custom<S: Surface>(optimizer: &dyn Optimizer<S>) -> Self {
        let states = optimizer.states().iter().map(|state| (*state).to_owned());
        Self::Custom { name: optimizer.name().to_owned(), states: states.collect() }
    }

    /// May state of `self` be state of `other`? What is not named may be of any custom optimizer.
    pub(super) fn may_be(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Unnamed, Self::Custom { .. }) | (Self::Custom { .. }, Self::Unnamed) => true,
            _ => self == other,
        }
    }

    /// The list of state that it calls `name`.
    ///
    /// # Errors
    /// Which there are.
    pub(super) fn state(of: Option<&Self>, name: &str) -> Result<StateId, CheckpointError> {
        let states: Vec<&str> = match of {
            Some(Self::Adam) => vec!["exp_avg", "exp_avg_sq"],
            Some(Self::Custom { states, .. }) => states.iter().map(String::as_str).collect(),
            Some(Self::Unnamed) | None => Vec::new(),
        };
        let found = states.iter().position(|state| *state == name).map(StateId::at);
        found.ok_or_else(|| {
            let name = shown(name);
            let reason = match states.is_empty() {
                true => format!(
                    "the checkpoint names no state `{name}`, for it does not say which optimizer wrote it; set its \
                     `optimizer_identity` to that optimizer and the names of its states"
                ),
                false => {
                    format!("the checkpoint names no state `{name}`; those that it names are: {}", listed("`", states))
                }
            };
            CheckpointError::unfit(reason)
        })
    }

    /// What is said of a weight without a state that others have.
    pub(super) fn lacks(weight: &str, state: &str) -> CheckpointError {
        CheckpointError::unfit(format!("`{}` has no `{}` in the checkpoint", shown(weight), shown(state)))
    }

    /// The text in the metadata of a file: a word, or an object of JSON.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        Ok(match serde_json::to_value(self)? {
            serde_json::Value::String(word) => word,
            object => object.to_string(),
        })
    }

    /// That of a file; none of another text.
    pub(crate) fn of_text(text: &str) -> Option<Self> {
        let word = || serde_json::from_value(serde_json::Value::String(text.to_owned()));
        serde_json::from_str(text).or_else(|_| word()).ok()
    }
}

/// In a sentence.
impl fmt::Display for OptimizerIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Adam => out.write_str("Adam"),
            Self::Unnamed => out.write_str("a custom optimizer"),
            Self::Custom { name, states } if states.is_empty() => {
                write!(out, "`{}`, which keeps no state", shown(name))
            }
            Self::Custom { name, states } => {
                write!(out, "`{}` with state {}", shown(name), listed("`", states))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(states: &[&str]) -> OptimizerIdentity {
        let states = states.iter().map(|state| (*state).to_owned()).collect();
        OptimizerIdentity::Custom { name: "Lion".to_owned(), states }
    }

    #[test]
    fn the_text_in_files_is_read_back_and_no_other_is() {
        for (by, text) in [
            (OptimizerIdentity::Adam, "adam"),
            (OptimizerIdentity::Unnamed, "unnamed_custom"),
            (custom(&["momentum"]), r#"{"custom":{"name":"Lion","states":["momentum"]}}"#),
        ] {
            assert_eq!(by.text().unwrap(), text);
            assert_eq!(OptimizerIdentity::of_text(text), Some(by));
        }
        assert_eq!(OptimizerIdentity::of_text("own_rule"), Some(OptimizerIdentity::Unnamed));
        for text in ["Adam", "", "custom", r#"{"custom":{"name":"Lion"}}"#] {
            assert_eq!(OptimizerIdentity::of_text(text), None);
        }
    }

    #[test]
    fn state_is_of_the_optimizer_of_its_name_and_states_and_of_any_if_it_is_not_named() {
        let lion = custom(&["momentum"]);
        assert!(
            lion.may_be(&lion)
                && lion.may_be(&OptimizerIdentity::Unnamed)
                && OptimizerIdentity::Unnamed.may_be(&lion)
        );
        assert!(!lion.may_be(&custom(&["velocity"])) && !lion.may_be(&OptimizerIdentity::Adam));
        assert!(
            !OptimizerIdentity::Adam.may_be(&OptimizerIdentity::Unnamed)
                && OptimizerIdentity::Adam.may_be(&OptimizerIdentity::Adam)
        );
    }
}
