//! Which optimizer made the state of a checkpoint.
//!
//! Law: as many lists of values as a session keeps are not yet state that it can go on from: two lists of a rule of the
//! trainer's own have the shape of Adam's moments, and are none. So a checkpoint says whose they are.

use std::fmt;
use std::str::FromStr;

use crate::layout::StateLayout;

/// What updated the weights of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpdatedBy {
    /// The library's Adam.
    Adam,
    /// A rule of the trainer's own ([`updating`](crate::compute::updating)); which one a checkpoint does not say.
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

    /// In a sentence.
    pub(super) const fn in_words(self) -> &'static str {
        match self {
            Self::Adam => "Adam",
            Self::OwnRule => "a rule of the trainer's own (optimizer.own_states)",
        }
    }
}

/// The word in files.
impl fmt::Display for UpdatedBy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Adam => "adam",
            Self::OwnRule => "own_rule",
        })
    }
}

impl FromStr for UpdatedBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Adam, Self::OwnRule].into_iter().find(|known| known.to_string() == text);
        known.ok_or_else(|| {
            format!("its weights were updated by `{}`, which is not known", crate::errors::shown(text))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_in_files_is_read_back_and_no_other_is() {
        for by in [UpdatedBy::Adam, UpdatedBy::OwnRule] {
            assert_eq!(by.to_string().parse(), Ok(by));
        }
        assert!("Adam".parse::<UpdatedBy>().unwrap_err().contains("`Adam`"));
    }
}
