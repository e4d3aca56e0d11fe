//! Which optimizer made the state of a checkpoint.
//!
//! Law: as many lists of values as a session keeps are not yet state that it can go on from: two lists of a rule of the
//! trainer's own have the shape of Adam's moments, and are none. So a checkpoint says whose they are.

use serde::{Deserialize, Serialize};

use warpweft_plan::layout::StateLayout;

/// What updated the weights of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UpdatedBy {
    /// The library's Adam.
    Adam,
    /// A custom optimizer ([`Optimizer`](crate::compute::Optimizer)); which one a checkpoint does not say.
    OwnRule,
}

impl UpdatedBy {
    /// What updates the weights of a session.
    pub(super) const fn of(state: StateLayout) -> Self {
        match state.own_states {
            None => Self::Adam,
            Some(_) => Self::OwnRule,
        }
    }

    /// The word in files.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Adam => "adam",
            Self::OwnRule => "own_rule",
        }
    }

    /// That of a file; none for another word.
    pub(super) fn of_word(word: &str) -> Option<Self> {
        [Self::Adam, Self::OwnRule].into_iter().find(|known| known.word() == word)
    }

    /// In a sentence.
    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Adam => "Adam",
            Self::OwnRule => "a custom optimizer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_files_is_read_back_and_no_other_is() {
        for by in [UpdatedBy::Adam, UpdatedBy::OwnRule] {
            assert_eq!(UpdatedBy::of_word(by.word()), Some(by));
            assert_eq!(serde_json::to_value(by).unwrap(), by.word());
        }
        assert_eq!(UpdatedBy::of_word("Adam"), None);
    }
}
