//! Registers: how many leases are open on each slot.
//!
//! Law (FL-2): a slot is written only when no lease on it is open. A register counts what was granted and
//! what was spent, and refuses to count below zero; it never decides.

use warpweft_base::id::SlotId;

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

    /// A lease on `slot` was spent. `false`, and nothing changes, if none was open.
    ///
    /// # Panics
    /// When the slot belongs to another plan.
    #[must_use]
    pub fn spend(&mut self, slot: SlotId) -> bool {
        let open = &mut self.open[slot.index()];
        let left = open.checked_sub(1);
        *open = left.unwrap_or(0);
        left.is_some()
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
