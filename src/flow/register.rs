//! Registers: how many leases are open on each slot.
//!
//! Law (FL-2): a slot is written only when no lease on it is open. A register counts what was granted and
//! what was spent; it never decides, it only refuses.

use crate::id::SlotId;

/// One counter per slot of a plan.
#[derive(Clone, Debug)]
pub struct Registers {
    open: Vec<u32>,
}

impl Registers {
    /// Registers for `slots` slots, nothing granted.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { open: vec![0; slots] }
    }

    /// Forgets everything, for the next step or after an error.
    pub fn reset(&mut self) {
        self.open.fill(0);
    }

    /// A lease on `slot` was granted.
    ///
    /// # Panics
    /// When the slot belongs to another plan.
    pub fn grant(&mut self, slot: SlotId) {
        self.open[slot.index()] += 1;
    }

    /// A lease on `slot` was spent.
    ///
    /// # Panics
    /// When the slot belongs to another plan.
    pub fn spend(&mut self, slot: SlotId) {
        self.open[slot.index()] = self.open[slot.index()].saturating_sub(1);
    }

    /// Leases on `slot` that are not spent.
    ///
    /// # Panics
    /// When the slot belongs to another plan.
    #[must_use]
    pub fn open(&self, slot: SlotId) -> u32 {
        self.open[slot.index()]
    }
}
