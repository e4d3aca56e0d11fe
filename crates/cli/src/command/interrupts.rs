//! Interrupts of the process: who ends the work, and when the process ends at once.
//!
//! Law: no interrupt is lost. A command that looks for the first one ends by itself and tidies up, or is past
//! where it would; where none ever looks, and from the second one on, the process has to end at once. Then a
//! temporary file may stay behind; no file under a name that somebody gave is ever half written.

use std::sync::atomic::{AtomicBool, Ordering};

/// The interrupts of one process.
#[derive(Debug, Default)]
pub struct Interrupts {
    requested: AtomicBool,
    watched: AtomicBool,
}

impl Interrupts {
    /// The exit code of an interrupted process.
    pub const EXIT_CODE: u8 = 130;

    /// An interrupt came. Does the process have to end at once?
    pub fn came(&self) -> bool {
        let again = self.requested.swap(true, Ordering::SeqCst);
        again || !self.watched.load(Ordering::SeqCst)
    }

    /// The flag of whoever looks at it from now on, and ends by itself once it is set.
    pub(super) fn watch(&self) -> &AtomicBool {
        self.watched.store(true, Ordering::SeqCst);
        &self.requested
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_interrupt_is_left_to_whoever_looks_and_every_other_ends_the_process() {
        assert!(Interrupts::default().came());
        let interrupts = Interrupts::default();
        let requested = interrupts.watch();
        assert!(!requested.load(Ordering::Relaxed));
        assert!(!interrupts.came() && requested.load(Ordering::Relaxed));
        assert!(interrupts.came() && interrupts.came());
    }
}
