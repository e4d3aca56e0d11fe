//! Rows with counts: what of a dispatch is moved, and what a closure may count.
//!
//! Laws:
//! - A slot is moved up to its count and never beyond its capacity, whatever the count is.
//! - A call that writes counts by which ranks give each other rows has failed if one is above the capacity.

use super::Refusal;
use super::binder::Binder;
use super::slices::Slices;
use crate::ClosureFault;
use warpweft_base::id::CallId;
use warpweft_plan::layout::Region;
use warpweft_plan::model::{Counts, Group};
use warpweft_plan::op::{CountSlots, Operand, OperandRole};

/// The slots that ranks of a group have for each other, each filled up to its count.
#[derive(Clone, Copy, Debug)]
pub struct Filled {
    /// All slots for one rank, counts aside.
    pub slices: Slices,
    /// Counts of what the rank gives, the same place in every arena.
    pub given: Region,
    /// Counts of what it gets.
    pub taken: Region,
    /// How many slots each rank has for another.
    pub slots: usize,
    /// Rows of a slot.
    pub capacity: usize,
    /// Bytes of a row.
    pub row: usize,
    /// Whether the counts of what it gets are there.
    pub known: bool,
    /// Whether what is undefined is spoiled, so that a test notices who reads it.
    pub spoiled: bool,
}

impl Filled {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        slices: Slices,
        ranks: u32,
        CountSlots { given, taken, declared }: CountSlots,
    ) -> Result<Self, Refusal> {
        let given = binder.region(given)?;
        let taken = binder.bytes(taken, given.bytes)?;
        let slots = (given.bytes / size_of::<u32>()).checked_div(ranks as usize).unwrap_or(0);
        let row = slices.bytes.checked_div(slots.saturating_mul(declared.capacity)).unwrap_or(0);
        let filled = Self {
            slices,
            given,
            taken,
            slots,
            capacity: declared.capacity,
            row,
            known: declared.known,
            spoiled: binder.binding.spoiled,
        };
        let fits = row > 0
            && slots * ranks as usize * size_of::<u32>() == given.bytes
            && row * slots * declared.capacity == slices.bytes;
        if fits { Ok(filled) } else { Err(format!("{} counts do not fit the slots of {ranks} ranks", slots)) }
    }

    /// Where the counts of what is for, or from, the rank at `place` are.
    pub const fn counts_at(&self, counts: Region, place: usize) -> Region {
        let bytes = self.slots * size_of::<u32>();
        Region { offset: counts.offset + bytes * place, bytes }
    }

    /// The exchange of the counts, unless they are known.
    pub fn counts(&self) -> Option<Slices> {
        let bytes = self.slots * size_of::<u32>();
        (!self.known).then_some(Slices { source: self.given, received: self.taken, with_own: true, bytes })
    }

    /// The rows of a slot that are moved for a count, which may be any number after a fault.
    pub fn rows(&self, count: u32) -> u32 {
        u32::try_from(self.capacity).map_or(count, |capacity| capacity.min(count))
    }

    /// The bytes that come from another rank at most.
    pub(super) const fn most_of_each(&self) -> usize {
        let counts = if self.known { 0 } else { self.slots * size_of::<u32>() };
        self.slices.bytes + counts
    }
}

/// Counts that a call writes.
#[derive(Debug)]
pub struct WrittenCounts {
    /// Where they are.
    pub region: Region,
    /// Above this, a count is a fault.
    pub capacity: usize,
    /// Slots for one rank.
    slots: usize,
    group: Group,
    buffer: String,
    /// The dispatch that goes by them.
    dispatch: String,
}

impl WrittenCounts {
    /// Of every dispatch that goes by what these operands write.
    pub(super) fn of(binder: &Binder<'_>, operands: &[Operand]) -> Result<Vec<Self>, Refusal> {
        let mut all = Vec::new();
        for operand in operands.iter().filter(|operand| operand.access.writes()) {
            let OperandRole::Buffer(buffer) = operand.role else { continue };
            for call in binder.binding.calls {
                let Some(collective) = call.collective else { continue };
                let Some(Counts { given, capacity, known: false, .. }) = collective.counts else { continue };
                let of = &binder.binding.buffers[buffer.index()].name;
                if given != buffer
                    || all.iter().any(|other: &Self| (&other.buffer, &other.dispatch) == (of, &call.name))
                {
                    continue;
                }
                let region = binder.region(operand.slot)?;
                let ranks = binder.binding.weights.mesh.size(collective.group) as usize;
                all.push(Self {
                    region,
                    capacity,
                    slots: (region.bytes / size_of::<u32>()).checked_div(ranks).unwrap_or(0),
                    group: collective.group,
                    buffer: of.clone(),
                    dispatch: call.name.clone(),
                });
            }
        }
        Ok(all)
    }

    /// The fault of a call that counted so, if it is one.
    pub fn fault(&self, call: CallId, counts: &[u32]) -> Option<ClosureFault> {
        let (slot, count) = counts.iter().enumerate().find(|(_, count)| **count as usize > self.capacity)?;
        Some(self.fault_of(call, slot, *count))
    }

    /// The fault of a call that counted more rows in a slot than there is room for.
    pub fn fault_of(&self, call: CallId, slot: usize, count: u32) -> ClosureFault {
        let Self { capacity, slots, group, buffer, dispatch, .. } = self;
        let place = slot.checked_div(*slots).unwrap_or(0);
        let message = format!(
            "`{buffer}` counts {count} rows in slot {slot}, which is for rank {place} of the {group} group, but `{dispatch}` has a capacity of {capacity}; declare a capacity of {count} or more, or let the closure keep fewer"
        );
        ClosureFault { call, message, panicked: false }
    }
}
