//! Collectives: what each rank pulls from its peers' arenas.
//!
//! Laws:
//! - Every rank of the collective's group pulls what it needs, between a rendezvous of the group before and
//!   one after, so a peer's memory is read only while that peer stands still in the same collective (PL-8).
//! - A sum adds the group's ranks in rank order in f32, starting from the first one's value, and is rounded once if
//!   it is kept in bf16; a maximum ignores NaN. Both are the same for every rank of the group, which reads all values
//!   by itself, since memory is shared; the paced time is that of slices where the op goes in slices.
//! - A rank pulls its peers' parts of gathered planes; it adds its own part by itself, in no collective.
//! - With a paced link a collective lasts at least `latency + received bytes / bytes_per_s` from the moment
//!   the last rank arrived; a communicator carries one at a time.

use half::bf16;

use super::bound::BoundTask;
use super::context::LaneContext;
use super::memory::Arena;
use super::op_error::OpError;
use super::roll::Ticket;
use super::world::{Presence, World};
use crate::local::{Collective, Combination, Filled, Move, PlanePiece, Pull, Slices};
use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::compute::SPOILED;
use warpweft_plan::layout::Region;
use warpweft_plan::model::Group;
use warpweft_plan::op::Reduction;

/// Meets the peers, pulls, and parts from them. Returns when the last one arrived.
pub(super) fn collective(op: &Collective, task: &BoundTask, context: &LaneContext) -> Result<u64, OpError> {
    let places = context.places.as_ref().ok_or(OpError::NoCommunicator)?;
    let Presence { world, rank, .. } = &*context.presence;
    let peers = Peers { world, rank: *rank, group: op.group };
    let ticket = Ticket { task: task.id, op: task.name, source: op.source, received: op.received };
    let place = places.call(*rank, op.group, ticket, &world.poison)?;
    let joined = place.arrive(*rank, ticket, world.clock, &world.poison)?;
    let mut received = op.received;
    let pulled = match &op.pull {
        Pull::Gather(moves) => moves.iter().try_for_each(|part| gather(peers, &context.arena, *part)),
        Pull::Chunk(pieces) => {
            pieces.iter().try_for_each(|piece| gather_piece(peers, &context.arena, *piece))
        }
        Pull::Concatenate(part) => concatenate(peers, &context.arena, *part),
        Pull::ReduceScatter(ElementType::Bf16, parts) => {
            parts.iter().try_for_each(|part| sum_bf16(peers, &context.arena, part.own))
        }
        Pull::ReduceScatter(_, parts) => {
            parts.iter().try_for_each(|part| reduce(peers, &context.arena, Reduction::Sum, part.own))
        }
        Pull::ExchangeGradient(parts) => {
            parts.iter().try_for_each(|part| exchange(peers, &context.arena, part))
        }
        Pull::AllToAll(slices) => exchange(peers, &context.arena, slices),
        Pull::Filled(filled) => {
            let moved = exchange_filled(peers, &context.arena, filled);
            received = moved.as_ref().map_or(received, |moved| *moved);
            moved.map(drop)
        }
        Pull::SumSlices(element, part) => {
            let offset = part.from.offset + part.to.bytes * peers.position();
            let own = Move { from: Region { offset, ..part.to }, ..*part };
            let sum = Combination { reduction: Reduction::Sum, element: *element };
            combine(peers, &context.arena, sum, own)
        }
        Pull::AllReduce(combination, _, moves) => {
            moves.iter().try_for_each(|part| combine(peers, &context.arena, *combination, *part))
        }
    };
    if let Some(link) = world.options.link {
        place.pause(joined.at.saturating_add(link.duration(received)), world.clock, &world.poison)?;
    }
    // Whether or not the pull worked, the peers must go on.
    place.leave(joined, &world.poison)?;
    pulled?;
    Ok(joined.at)
}

/// The ranks a collective brings together, as seen from one of them.
#[derive(Clone, Copy)]
struct Peers<'w> {
    world: &'w World,
    rank: RankId,
    group: Group,
}

impl<'w> Peers<'w> {
    /// The rank's place among the group's.
    fn position(self) -> usize {
        self.world.mesh.position(self.rank, self.group) as usize
    }

    /// The group's ranks and their arenas, in rank order.
    fn arenas(self) -> impl Iterator<Item = (RankId, Result<&'w Arena, OpError>)> {
        let Self { world, rank, group } = self;
        let arena = move |rank| world.arena(rank).map(|arena| &**arena).ok_or(OpError::NoArena(rank));
        world.mesh.members(rank, group).map(move |rank| (rank, arena(rank)))
    }
}

fn gather(peers: Peers<'_>, own: &Arena, part: Move) -> Result<(), OpError> {
    let Move { from, to } = part;
    gather_piece(peers, own, PlanePiece { from, to, first: 0, stride: from.bytes })
}

fn gather_piece(peers: Peers<'_>, own: &Arena, piece: PlanePiece) -> Result<(), OpError> {
    let PlanePiece { from, to, first, stride } = piece;
    let mut target = own.write::<u8>(to)?;
    let places = peers.arenas().zip(target.chunks_mut(stride.max(1)));
    for ((_, arena), place) in places.filter(|((rank, _), _)| *rank != peers.rank) {
        let source = arena?.read::<u8>(from)?;
        if let Some(place) = place.get_mut(first..first + source.len()) {
            place.copy_from_slice(&source);
        }
    }
    Ok(())
}

/// What the others have for this rank, side by side, with its own among them if that has a place.
fn exchange(peers: Peers<'_>, own: &Arena, part: &Slices) -> Result<(), OpError> {
    let taker = peers.position();
    let given = Region { offset: part.given(taker), bytes: part.bytes };
    for ((_, arena), giver) in peers.arenas().zip(0..).filter(|(_, giver)| part.with_own || *giver != taker) {
        let source = arena?.read::<u8>(given)?;
        let received = Region { offset: part.received_at(giver, taker), bytes: part.bytes };
        own.write::<u8>(received)?.copy_from_slice(&source);
    }
    Ok(())
}

/// The filled rows that all have for this rank. Returns the bytes that came from others, counts among them.
fn exchange_filled(peers: Peers<'_>, own: &Arena, part: &Filled) -> Result<u64, OpError> {
    let (taker, slices) = (peers.position(), part.slices);
    let mut moved = 0;
    for ((_, arena), giver) in peers.arenas().zip(0..) {
        let arena = arena?;
        let taken = part.counts_at(part.taken, giver);
        if !part.known {
            let given = part.counts_at(part.given, taker);
            let counts: Vec<u32> = arena.read::<u32>(given)?.iter().map(|count| part.rows(*count)).collect();
            own.write::<u32>(taken)?.copy_from_slice(&counts);
            moved += if giver == taker { 0 } else { given.bytes as u64 };
        }
        let counts: Vec<u32> = own.read::<u32>(taken)?.to_vec();
        let slot = part.row * part.capacity;
        for (number, count) in counts.into_iter().enumerate() {
            let bytes = part.row * part.rows(count) as usize;
            let from = Region { offset: slices.given(taker) + slot * number, bytes };
            let to = Region { offset: slices.received_at(giver, taker) + slot * number, bytes };
            own.write::<u8>(to)?.copy_from_slice(&arena.read::<u8>(from)?);
            if part.spoiled {
                let undefined = Region { offset: to.offset + bytes, bytes: slot - bytes };
                own.write::<u8>(undefined)?.fill(SPOILED);
            }
            moved += if giver == taker { 0 } else { bytes as u64 };
        }
    }
    Ok(moved)
}

fn concatenate(peers: Peers<'_>, own: &Arena, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<u8>(part.to)?;
    for ((_, arena), place) in peers.arenas().zip(target.chunks_exact_mut(part.from.bytes.max(1))) {
        place.copy_from_slice(&arena?.read::<u8>(part.from)?);
    }
    Ok(())
}

/// bf16 values of all ranks, summed in f32.
fn sum_bf16(peers: Peers<'_>, own: &Arena, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<f32>(part.to)?;
    for (position, (_, arena)) in peers.arenas().enumerate() {
        let source = arena?.read::<bf16>(part.from)?;
        for (sum, value) in target.iter_mut().zip(source.iter()) {
            *sum = if position == 0 { value.to_f32() } else { *sum + value.to_f32() };
        }
    }
    Ok(())
}

fn reduce(peers: Peers<'_>, own: &Arena, reduction: Reduction, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<f32>(part.to)?;
    for (position, (_, arena)) in peers.arenas().enumerate() {
        let source = arena?.read::<f32>(part.from)?;
        match position {
            0 => target.copy_from_slice(&source),
            _ => add(reduction, &mut target, source.iter().copied()),
        }
    }
    Ok(())
}

/// Values of all ranks, of whatever type.
fn combine(peers: Peers<'_>, own: &Arena, by: Combination, part: Move) -> Result<(), OpError> {
    match by.element {
        ElementType::Bf16 => reduce_bf16(peers, own, by.reduction, part),
        // Of no other type is there a collective that combines.
        ElementType::F32 | ElementType::U8 | ElementType::U32 => reduce(peers, own, by.reduction, part),
    }
}

/// Elements of which the f32 values are kept at once.
const CHUNK: usize = 2048;

/// bf16 values of all ranks, combined in f32 and rounded once.
fn reduce_bf16(peers: Peers<'_>, own: &Arena, reduction: Reduction, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<bf16>(part.to)?;
    let mut all = [0.0_f32; CHUNK];
    for (number, target) in target.chunks_mut(CHUNK).enumerate() {
        let offset = part.from.offset + number * CHUNK * size_of::<bf16>();
        let from = Region { offset, bytes: size_of_val(target) };
        for (position, (_, arena)) in peers.arenas().enumerate() {
            let source = arena?.read::<bf16>(from)?;
            let values = source.iter().map(|value| value.to_f32());
            match position {
                0 => all.iter_mut().zip(values).for_each(|(all, value)| *all = value),
                _ => add(reduction, &mut all, values),
            }
        }
        target.iter_mut().zip(&all).for_each(|(target, value)| *target = bf16::from_f32(*value));
    }
    Ok(())
}

/// The next rank's values to those of the ranks before it.
fn add(reduction: Reduction, all: &mut [f32], values: impl Iterator<Item = f32>) {
    match reduction {
        Reduction::Sum => all.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
        Reduction::Max => all.iter_mut().zip(values).for_each(|(max, value)| {
            if value > *max || max.is_nan() {
                *max = value;
            }
        }),
    }
}
