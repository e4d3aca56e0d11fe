//! Poison: the mark a lost right leaves behind.
//!
//! Law (FL-4): the first reason stays. The code that drives a rank looks before and after each step and goes
//! no further once it is set. Poison belongs to one rank's flow, which one thread drives, whichever of its
//! plans lost the right; worlds of ranks have their own. Every right holds it, so it is counted without
//! atomics.

use std::cell::OnceCell;
use std::rc::Rc;

use super::ExecError;
use warpweft_base::id::RankId;

/// A mark shared by everything that holds rights of one rank.
#[derive(Clone, Debug, Default)]
pub struct Poison {
    reason: Rc<OnceCell<String>>,
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

    /// Refuses, in the name of `rank`, once the mark is set.
    ///
    /// # Errors
    /// [`ExecError::Poisoned`] with the reason.
    pub fn check(&self, rank: RankId) -> Result<(), ExecError> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(ExecError::Poisoned { rank, what: reason.to_owned() }),
        }
    }
}
