//! Receive buffers outside the arena: where what peers send waits if no slot of the plan is for it.
//!
//! On one host these are values that all ranks combine, until each has done so, if they are few, a string of many
//! small ones, and the slices of a reduce-scatter of a buffer. Slices of larger values wait where their outcome
//! goes. Over several hosts it also holds what a rank passes on for its neighbours. Whatever else is sent lands in
//! slots of the plan.
//!
//! Laws:
//! - Every lane with collectives has a part of its own, as large as its most demanding collective needs. A
//!   lane runs one collective at a time, and peers send only between that collective's meetings, whatever
//!   groups the previous one and this one belong to.
//! - Places follow from the plan, the mesh and the world's hosts alone, so they are the same on every rank: a
//!   rank knows where in a peer's memory its values belong.

use std::collections::BTreeMap;

use crate::world::hosts::Hosts;
use warpweft_backend::local::{LocalOp, Move, Pull};
use warpweft_base::id::LaneId;
use warpweft_plan::layout::{ALIGNMENT, Binding};
use warpweft_plan::model::Group;
use warpweft_plan::op::Division;

/// The parts of one plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ReceiveBuffers {
    places: BTreeMap<LaneId, usize>,
    bytes: usize,
}

impl ReceiveBuffers {
    /// What the collectives among `ops`, which belong to `binding`, need on every rank; `hosts` says how the
    /// ranks of a group are spread over hosts.
    pub(crate) fn of(binding: &Binding<'_>, ops: &[LocalOp], hosts: impl Fn(Group) -> Hosts) -> Self {
        let mut needs: BTreeMap<LaneId, usize> = BTreeMap::new();
        for (op, (_, lane)) in ops.iter().zip(binding.ops) {
            if let LocalOp::Collective(collective) = op {
                let most = needs.entry(*lane).or_default();
                *most = (*most).max(needed(&collective.pull, hosts(collective.group)));
            }
        }
        Self::stacked(needs)
    }

    fn stacked(needs: BTreeMap<LaneId, usize>) -> Self {
        let mut receive_buffer = Self::default();
        for (lane, bytes) in needs {
            receive_buffer.places.insert(lane, receive_buffer.bytes);
            receive_buffer.bytes = receive_buffer.bytes.saturating_add(bytes);
        }
        receive_buffer
    }

    /// Bytes of all parts.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the part of `lane` begins.
    pub(crate) fn place(&self, lane: LaneId) -> usize {
        self.places.get(&lane).copied().unwrap_or(0)
    }
}

/// Bytes between the values of two ranks that wait here, of `bytes` each.
pub(crate) const fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Values that wait on a rank for ranks of other hosts, while slices are exchanged. A rank that is alone on its host
/// passes nothing on.
pub(crate) const fn relayed(hosts: Hosts) -> usize {
    if hosts.each() > 1 { (hosts.count() - 1) * hosts.each() } else { 0 }
}

/// Bytes of the string of these values: as it was given, and as slices of it land.
pub(crate) fn string(division: Division, moves: &[Move]) -> usize {
    let slice = division.slice_of_string(moves.iter().map(|part| part.from.bytes));
    stride(slice.saturating_mul(division.ranks())).saturating_mul(2)
}

/// Bytes of the others' slices of a reduce-scatter, which wait here to be added.
pub(crate) const fn slices(part: Move, hosts: Hosts) -> usize {
    stride(part.to.bytes.saturating_mul(hosts.ranks().saturating_sub(1)))
}

/// Bytes one collective needs.
pub(crate) fn needed(pull: &Pull, hosts: Hosts) -> usize {
    let each = |bytes: usize, values: usize| stride(bytes).saturating_mul(values);
    let all = |bytes: &mut dyn Iterator<Item = usize>| bytes.fold(0, usize::saturating_add);
    match pull {
        Pull::Gather(_) | Pull::Chunk(_) | Pull::Concatenate(_) | Pull::ReduceScatter(..) => 0,
        Pull::Filled(filled) => {
            let parts = std::iter::once(filled.slices).chain(filled.counts());
            all(&mut parts.map(|part| each(part.bytes, relayed(hosts))))
        }
        Pull::AllToAll(slices) => each(slices.bytes, relayed(hosts)),
        Pull::SumSlices(_, part) => slices(*part, hosts).saturating_add(each(part.to.bytes, relayed(hosts))),
        Pull::ExchangeGradient(parts) => all(&mut parts.iter().map(|part| each(part.bytes, relayed(hosts)))),
        Pull::AllReduce(_, division, moves) if division.is_in_slices() => {
            let sizes = moves.iter().map(|part| part.from.bytes);
            let of_string = each(division.slice_of_string(sizes.clone()), relayed(hosts));
            let of_values = all(&mut sizes.map(|bytes| each(division.slice(bytes), relayed(hosts))));
            string(*division, moves).saturating_add(of_string).saturating_add(of_values)
        }
        Pull::AllReduce(_, _, moves) => {
            all(&mut moves.iter().map(|part| each(part.from.bytes, hosts.ranks())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_land_side_by_side_and_a_lane_without_collectives_needs_nothing() {
        let needs = BTreeMap::from([(LaneId::new(2), 512), (LaneId::new(3), 256)]);
        let receive_buffer = ReceiveBuffers::stacked(needs);
        assert_eq!((receive_buffer.place(LaneId::new(2)), receive_buffer.place(LaneId::new(3))), (0, 512));
        assert_eq!(receive_buffer.bytes(), 768);
        assert_eq!(ReceiveBuffers::stacked(BTreeMap::new()), ReceiveBuffers::default());
    }
}
