//! Names and the positions they stand for.
//!
//! Law: an index says nothing that the list beside it does not, so it is neither compared nor serialized; whoever
//! adds to the list adds to the index. With it, a declaration of tens of thousands of weights looks up each name
//! once, not all names before it.

use std::collections::BTreeMap;

use super::DeclareError;
use warpweft_base::errors::{listed, shown};

/// The positions of a list's names.
#[derive(Clone, Debug, Default)]
pub(super) struct NameIndex {
    positions: BTreeMap<String, usize>,
}

impl NameIndex {
    /// Where `name` is in the list.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.positions.contains_key(name)
    }

    /// Adds the name of what the list gets next.
    pub(super) fn push(&mut self, name: &str) {
        self.positions.insert(name.to_owned(), self.positions.len());
    }
}

impl PartialEq for NameIndex {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for NameIndex {}

/// Names in one line, for messages.
pub(super) fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    listed("", all)
}

/// A name is one that messages show as it is.
pub(super) fn check_name(kind: &'static str, name: &str) -> Result<(), DeclareError> {
    match name {
        "" => Err(DeclareError::Unnamed { kind }),
        name if shown(name) == name => Ok(()),
        name => Err(DeclareError::Name { kind, name: shown(name) }),
    }
}
