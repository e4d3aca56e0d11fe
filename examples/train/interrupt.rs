//! Ctrl-C, and a request to terminate, end training after the step that is under way: what was done is summed
//! up and its files are written. A second one ends the process at once.
//!
//! Law: only a process that trains alone listens; one of several would leave the others waiting in the next
//! step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::say::complain;

/// Whether training should end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// What shells expect of a program that was interrupted.
    pub(crate) const EXIT_CODE: u8 = 130;

    /// Listens from now on.
    pub(crate) fn listen() -> Self {
        let own = Self::default();
        let came = own.clone();
        let caught = ctrlc::set_handler(move || {
            if came.0.swap(true, Ordering::Relaxed) {
                std::process::exit(Self::EXIT_CODE.into());
            }
        });
        if let Err(error) = caught {
            complain!("train: an interrupt will take the results away ({error})");
        }
        own
    }

    /// Did one come?
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
