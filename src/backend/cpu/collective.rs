//! Collectives: what each rank pulls from its peers' arenas.
//!
//! Laws:
//! - Offsets are the same in every arena; lengths come from the shard layout. Every rank pulls
//!   what it needs, between a rendezvous before and one after, so a peer's memory is read only
//!   while that peer stands still in the same collective (PL-8).
//! - A sum adds ranks 0, 1, … in f32, starting from rank 0's value; a maximum ignores NaN. Both
//!   are the same for every rank.
//! - A rank with no real rows moves its stored zero rows and joins like any other (CO-2 holds as
//!   well: what the slots hold does not matter).
//! - Scale rows that a format repeats travel once and are spread where they land, behind the
//!   rendezvous: no peer waits for it.
//! - With a paced link a collective lasts at least `latency + received bytes / bytes_per_s` from
//!   the moment the last rank arrived; a communicator carries one at a time.

use super::bind::{Binder, Refusal};
use super::bound::BoundTask;
use super::lane::LaneContext;
use super::memory::Arena;
use super::ops::OpError;
use super::rendezvous::Ticket;
use super::world::{Presence, World};
use crate::format::{Format, Orientation, PlaneSpec, Shape, expand_scale};
use crate::id::{RankId, SlotId, WeightId};
use crate::layout::{PlaneRegions, Region};
use crate::op::{NormRecord, Reduction};

/// One collective, bound to one rank.
#[derive(Debug)]
pub(super) struct Collective {
    /// The first source slot, to compare with the peers'.
    source: Region,
    /// Bytes the rank receives from others.
    received: u64,
    pull: Pull,
    expand: Option<Expand>,
}

/// A gathered scale plane whose compact rows are spread once they are here.
#[derive(Clone, Copy, Debug)]
struct Expand {
    format: Format,
    orientation: Orientation,
    shape: Shape,
    plane: Region,
}

/// What a rank pulls.
#[derive(Debug)]
enum Pull {
    /// Every rank's `from`, one after the other into `to`; the rest of `to` is zeroed.
    Gather(Vec<Move>),
    /// Every rank's `from`, combined into `to`.
    Reduce(Reduction, Vec<Move>),
}

#[derive(Clone, Copy, Debug)]
struct Move {
    from: Region,
    to: Region,
}

impl Collective {
    fn new(binder: &Binder<'_>, source: Region, pull: Pull) -> Self {
        let (Pull::Gather(moves) | Pull::Reduce(_, moves)) = &pull;
        let each: usize = moves.iter().map(|part| part.from.bytes).sum();
        let received = (each as u64).saturating_mul(u64::from(binder.binding.weights.mesh.ranks() - 1));
        Self { source, received, pull, expand: None }
    }

    pub(super) fn all_gather(
        binder: &Binder<'_>,
        weight: WeightId,
        orientation: Orientation,
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let layout = binder.weight(weight)?;
        spread(binder, weight)?;
        let (shard, gathered) = (layout.shard_planes(orientation), layout.gathered_planes(orientation));
        let source = binder.bytes(from, PlaneRegions::bytes(&shard))?;
        let target = binder.bytes(to, PlaneRegions::bytes(&gathered))?;
        if shard.len() != gathered.len()
            || shard.iter().zip(&gathered).any(|(part, whole)| !stacks(part, whole))
        {
            return Err(format!("shards of `{}` do not lie one after the other when gathered", layout.name));
        }
        let (shard, gathered) =
            (PlaneRegions::within(source, &shard), PlaneRegions::within(target, &gathered));
        let planes =
            [Move { from: shard.data, to: gathered.data }, Move { from: shard.scale, to: gathered.scale }];
        let moves = planes.into_iter().filter(|plane| plane.to.bytes > 0).collect();
        let expand = (gathered.scale.bytes > 0).then_some(Expand {
            format: layout.format,
            orientation,
            shape: layout.shard.padded(),
            plane: gathered.scale,
        });
        Ok(Self { expand, ..Self::gather(binder, source, moves)? })
    }

    pub(super) fn gather_records(binder: &Binder<'_>, from: SlotId, to: SlotId) -> Result<Self, Refusal> {
        let from = binder.elements::<NormRecord>(from, 1)?;
        let to = binder.elements::<NormRecord>(to, binder.ranks())?;
        Self::gather(binder, from, vec![Move { from, to }])
    }

    fn gather(binder: &Binder<'_>, source: Region, moves: Vec<Move>) -> Result<Self, Refusal> {
        for part in &moves {
            if part.from.bytes.saturating_mul(binder.ranks()) > part.to.bytes {
                return Err(format!("{} parts of {} bytes do not fit", binder.ranks(), part.from.bytes));
            }
        }
        Ok(Self::new(binder, source, Pull::Gather(moves)))
    }

    pub(super) fn reduce_scatter(
        binder: &Binder<'_>,
        weight: WeightId,
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let layout = binder.weight(weight)?;
        spread(binder, weight)?;
        let own = layout.stored_elements() * size_of::<f32>();
        let source = binder.bytes(from, own * binder.ranks())?;
        let rows = source.part(own * binder.binding.rank.index(), own);
        let rows = rows.ok_or_else(|| format!("{} is not in the mesh", binder.binding.rank))?;
        let moves = vec![Move { from: rows, to: binder.bytes(to, own)? }];
        Ok(Self::new(binder, source, Pull::Reduce(Reduction::Sum, moves)))
    }

    pub(super) fn all_reduce(
        binder: &Binder<'_>,
        reduction: Reduction,
        pairs: &[(SlotId, SlotId)],
    ) -> Result<Self, Refusal> {
        let mut moves = Vec::new();
        for (from, to) in pairs {
            let from = binder.region(*from)?;
            moves.push(Move { from, to: binder.bytes(*to, from.bytes)? });
        }
        let source = moves.first().map_or_else(Region::default, |first| first.from);
        Ok(Self::new(binder, source, Pull::Reduce(reduction, moves)))
    }

    /// Meets the peers, pulls, and parts from them. Returns when the last one arrived.
    pub(super) fn run(&self, task: &BoundTask, context: &LaneContext) -> Result<u64, OpError> {
        let place = context.communicator.as_deref().ok_or(OpError::NoCommunicator)?;
        let Presence { world, rank } = &*context.presence;
        let ticket = Ticket { task: task.id, op: task.op, source: self.source, received: self.received };
        let joined = place.arrive(*rank, ticket, world.clock, &world.poison)?;
        let pulled = match &self.pull {
            Pull::Gather(moves) => moves.iter().try_for_each(|part| gather(world, &context.arena, *part)),
            Pull::Reduce(reduction, moves) => {
                moves.iter().try_for_each(|part| reduce(world, &context.arena, *reduction, *part))
            }
        };
        if let Some(link) = world.options.link {
            place.pause(
                joined.at.saturating_add(link.duration(self.received)),
                world.clock,
                &world.poison,
            )?;
        }
        // Whether the pull worked or not, the peers must get on.
        place.leave(joined, &world.poison)?;
        pulled?;
        if let Some(expand) = self.expand {
            let mut plane = context.arena.write(expand.plane)?;
            expand_scale(expand.format, expand.orientation, expand.shape, &mut plane)?;
        }
        Ok(joined.at)
    }
}

/// Collectives of one weight need a shard of it on every rank.
fn spread(binder: &Binder<'_>, weight: WeightId) -> Result<(), Refusal> {
    let layout = binder.weight(weight)?;
    if layout.shard.ranks as usize == binder.ranks() {
        return Ok(());
    }
    Err(format!("`{}` is not sharded over the {} ranks", layout.name, binder.ranks()))
}

/// Are the rows of `whole` rows of `part`, one after the other?
fn stacks(part: &PlaneSpec, whole: &PlaneSpec) -> bool {
    part.row_bytes() == whole.row_bytes()
}

fn peer(world: &World, rank: RankId) -> Result<&Arena, OpError> {
    world.arena(rank).map(|arena| &**arena).ok_or(OpError::NoArena(rank))
}

fn gather(world: &World, own: &Arena, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<u8>(part.to)?;
    let mut rest = &mut *target;
    for rank in world.mesh.iter() {
        let source = peer(world, rank)?.read::<u8>(part.from)?;
        let (place, behind) = rest.split_at_mut(source.len());
        place.copy_from_slice(&source);
        rest = behind;
    }
    rest.fill(0);
    Ok(())
}

fn reduce(world: &World, own: &Arena, reduction: Reduction, part: Move) -> Result<(), OpError> {
    let mut target = own.write::<f32>(part.to)?;
    for rank in world.mesh.iter() {
        let source = peer(world, rank)?.read::<f32>(part.from)?;
        match reduction {
            _ if rank.index() == 0 => target.copy_from_slice(&source),
            Reduction::Sum => target.iter_mut().zip(source.iter()).for_each(|(sum, value)| *sum += value),
            Reduction::Max => target.iter_mut().zip(source.iter()).for_each(|(max, value)| {
                if *value > *max || max.is_nan() {
                    *max = *value;
                }
            }),
        }
    }
    Ok(())
}
