//! The symbolic memory: what every slot holds after the tasks executed so far.
//!
//! Law: bytes have one tenant. Writing a slot ends the content of every slot that shares a byte
//! with it, so no symbol outlives its bytes.

use std::collections::{BTreeMap, BTreeSet};

use super::Held;
use crate::layout::Region;
use crate::plan::StepPlan;
use warpweft_base::id::{CallId, SlotId, TaskId};

#[derive(Clone)]
struct Cell {
    held: Held,
    writer: Option<TaskId>,
}

/// The memory of one rank, as symbols; equal on every rank.
pub(super) struct Slots<'p> {
    plan: &'p StepPlan,
    cells: Vec<Cell>,
    /// Slots whose content is alive, by first byte; disjoint. Empty slots are not among them.
    tenants: BTreeMap<usize, SlotId>,
}

impl<'p> Slots<'p> {
    pub(super) fn new(plan: &'p StepPlan) -> Self {
        let cells = vec![Cell { held: Held::Nothing, writer: None }; plan.arena.slots.len()];
        Self { plan, cells, tenants: BTreeMap::new() }
    }

    pub(super) fn held(&self, slot: SlotId) -> &Held {
        &self.cells[slot.index()].held
    }

    /// Every slot with what it holds.
    pub(super) fn all(&self) -> impl Iterator<Item = (SlotId, &Held)> {
        self.cells.iter().enumerate().map(|(number, cell)| (SlotId::at(number), &cell.held))
    }

    /// `by` makes `slot` hold `held`; `None` for what the step begins with.
    pub(super) fn put(&mut self, by: Option<TaskId>, slot: SlotId, held: Held) {
        let region = self.plan.arena.region(slot);
        if region.bytes > 0 && self.tenants.get(&region.offset) != Some(&slot) {
            self.evict(region, Held::Overwritten { by, through: slot });
            self.tenants.insert(region.offset, slot);
        }
        self.cells[slot.index()] = Cell { held, writer: by };
    }

    /// Takes the calls out of a sum that `slot` holds, to be put back with one more.
    pub(super) fn take_sum(&mut self, slot: SlotId) -> BTreeSet<CallId> {
        match &mut self.cells[slot.index()].held {
            Held::MainGrad(_, sum) | Held::LocalSum(_, sum) | Held::Gradient { calls: sum, .. } => {
                std::mem::take(sum)
            }
            _ => BTreeSet::new(),
        }
    }

    /// Content of `slot` and its writer, in words.
    pub(super) fn describe(&self, slot: SlotId) -> String {
        let Cell { held, writer } = &self.cells[slot.index()];
        let text = held.describe(self.plan);
        match (held, writer) {
            (Held::Overwritten { .. }, _) | (_, None) => text,
            (_, Some(task)) => format!("{text}, from {}", self.plan.describe(*task)),
        }
    }

    fn evict(&mut self, region: Region, epitaph: Held) {
        while let Some((begin, tenant)) = self.tenants.range(..region.end()).next_back() {
            let (begin, tenant) = (*begin, *tenant);
            if !self.plan.arena.region(tenant).overlaps(region) {
                break;
            }
            self.tenants.remove(&begin);
            self.cells[tenant.index()].held = epitaph.clone();
        }
    }
}
