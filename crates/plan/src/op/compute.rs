//! A call of the user's closure, and the roles of its operands.

use std::collections::HashMap;

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{BufferId, CallId, SlotId, WeightId};

/// Runs the user's closure for a call. A closure that fails leaves its call in the fault
/// word; while the fault word is set no closure runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Compute {
    /// Which call.
    pub call: CallId,
    /// The rank's fault word.
    pub fault: SlotId,
    /// Everything else the call accesses.
    pub operands: Vec<Operand>,
}

/// What a compute call's operand is to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum OperandRole {
    /// The weight of the n-th entry of [`crate::model::Call::uses`].
    Use(usize),
    /// What dequantizing the planes of the n-th use needs besides them.
    TensorScale(usize),
    /// The gradient of a weight.
    Gradient(WeightId),
    /// A declared buffer.
    Buffer(BufferId),
}

/// One operand of a compute call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Operand {
    /// Where it is.
    pub slot: SlotId,
    /// What the call does to it.
    pub access: Access,
    /// What it is to the call.
    pub role: OperandRole,
}

impl Operation for Compute {
    fn name(&self) -> &'static str {
        "compute"
    }

    fn part(&self) -> Part {
        Part::Calls
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let operands = self.operands.iter().map(|operand| (operand.slot, operand.access));
        merged(std::iter::once((self.fault, Access::Update)).chain(operands))
    }

    fn named(&self) -> Vec<Named> {
        let of_operand = |operand: &Operand| match operand.role {
            OperandRole::Gradient(weight) => Some(Named::Weight(weight)),
            OperandRole::Buffer(buffer) => Some(Named::Buffer(buffer)),
            OperandRole::Use(_) | OperandRole::TensorScale(_) => None,
        };
        let operands = self.operands.iter().filter_map(of_operand);
        std::iter::once(Named::Call(self.call)).chain(operands).collect()
    }

    fn moves(&self, _: &dyn Sizes) -> Option<Moves> {
        Some(Moves::Call(self.call))
    }
}

/// Joins repeated accesses to one slot into the strongest, where the first of them stands: a call may use a weight
/// twice.
fn merged(all: impl Iterator<Item = (SlotId, Access)>) -> Vec<(SlotId, Access)> {
    /// So many are looked through; of more, their places are kept.
    const FEW: usize = 32;
    let mut list: Vec<(SlotId, Access)> = Vec::with_capacity(all.size_hint().0);
    let mut places: HashMap<SlotId, usize> = HashMap::new();
    for (slot, access) in all {
        let known = if list.len() <= FEW {
            list.iter().position(|(other, _)| *other == slot)
        } else {
            let missing = places.len()..list.len();
            places.extend(missing.map(|place| (list[place].0, place)));
            places.get(&slot).copied()
        };
        match known {
            None => list.push((slot, access)),
            Some(place) if list[place].1 == access => {}
            Some(place) => list[place].1 = Access::Update,
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With few slots, and with more than are looked through one by one.
    #[test]
    fn a_slot_that_is_accessed_twice_is_listed_once_with_the_strongest_access() {
        for count in [1, 2, 31, 32, 33, 34, 100, 1000] {
            let slots = || (0..count).map(SlotId::at);
            let read = slots().map(|slot| (slot, Access::Read));
            let again = slots().rev().map(|slot| {
                let access = if slot.index().is_multiple_of(2) { Access::Read } else { Access::Write };
                (slot, access)
            });
            let found = merged(read.chain(again));
            let strongest = |slot: SlotId| {
                (slot, if slot.index().is_multiple_of(2) { Access::Read } else { Access::Update })
            };
            assert_eq!(found, slots().map(strongest).collect::<Vec<_>>(), "{count}");
        }
    }
}
