//! The end of a world: one reason, seen by every wait of every rank.
//!
//! Law: the first reason stays. Once it is set no wait blocks any more, now or later: a sleeper registered a
//! [`Wake`] before it went to sleep, and looks at the poison when woken.

use std::sync::{Mutex, OnceLock, Weak};

use super::bell::{Wake, lock};
use crate::BackendError;

/// The poison of one world.
#[derive(Default)]
pub(super) struct Poison {
    reason: OnceLock<String>,
    sleepers: Mutex<Vec<Weak<dyn Wake>>>,
}

impl Poison {
    /// Poisons the world, unless it already is, and wakes all waiters. Returns the error that every wait ends
    /// in from now on.
    pub(super) fn set(&self, reason: impl Into<String>) -> BackendError {
        let mut offered = Some(reason.into());
        let reason = self.reason.get_or_init(|| offered.take().unwrap_or_default());
        if offered.is_none() {
            let sleepers: Vec<_> = lock(&self.sleepers).iter().filter_map(Weak::upgrade).collect();
            for sleeper in sleepers {
                sleeper.wake();
            }
        }
        BackendError::Poisoned { reason: reason.clone() }
    }

    /// Why the world is poisoned, if it is.
    pub(super) fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// [`BackendError::Poisoned`] if the world is poisoned.
    pub(super) fn check(&self) -> Result<(), BackendError> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(BackendError::Poisoned { reason: reason.to_owned() }),
        }
    }

    /// From now on a poisoned world wakes `sleeper`.
    pub(super) fn watch(&self, sleeper: Weak<dyn Wake>) {
        let mut sleepers = lock(&self.sleepers);
        // Only where the list would grow, so that n of them take no n² looks.
        if sleepers.len() == sleepers.capacity() {
            sleepers.retain(|other| other.strong_count() > 0);
        }
        sleepers.push(sleeper);
    }
}

impl std::fmt::Debug for Poison {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Poison").field(&self.reason()).finish()
    }
}
