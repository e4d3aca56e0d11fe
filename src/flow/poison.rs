//! Poison: the mark a lost right leaves behind.
//!
//! Law (FL-4): the first reason stays. Whoever drives a rank looks before and after each step and
//! goes no further once it is set. Poison is of one rank's flow; worlds of ranks have their own.

use std::sync::{Arc, OnceLock};

/// A mark shared by everything that holds rights of one rank.
#[derive(Clone, Debug, Default)]
pub struct Poison {
    reason: Arc<OnceLock<String>>,
}

impl Poison {
    /// Sets the mark, unless it is set.
    pub fn set(&self, reason: impl Into<String>) {
        let _ = self.reason.set(reason.into());
    }

    /// Why the mark was set, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }
}
