//! Collectives: what each rank takes from its peers' arenas.
//!
//! Laws:
//! - Offsets are the same in every arena; lengths come from the shard layout.
//! - A rank with no real rows moves its stored zero rows and joins like any other (CO-2 holds as
//!   well: what the slots hold does not matter).
//! - Scale rows that a format repeats travel once and are spread where they land, behind the collective.

use super::Refusal;
use super::binder::Binder;
use crate::format::{Format, Orientation, PlaneSpec, Shape};
use crate::id::{SlotId, WeightId};
use crate::layout::{PlaneRegions, Region};
use crate::op::{NormRecord, Reduction};

/// One collective, bound to one rank.
#[derive(Debug)]
pub(in crate::backend) struct Collective {
    /// The first source slot, to compare with the peers'.
    pub(in crate::backend) source: Region,
    /// Bytes the rank receives from others.
    pub(in crate::backend) received: u64,
    pub(in crate::backend) pull: Pull,
    pub(in crate::backend) expand: Option<Expand>,
}

/// A gathered scale plane whose compact rows are spread once they are here.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Expand {
    pub(in crate::backend) format: Format,
    pub(in crate::backend) orientation: Orientation,
    pub(in crate::backend) shape: Shape,
    pub(in crate::backend) plane: Region,
}

/// What a rank pulls.
#[derive(Debug)]
pub(in crate::backend) enum Pull {
    /// Every rank's `from`, one after the other into `to`; the rest of `to` is zeroed.
    Gather(Vec<Move>),
    /// Every rank's `from`, which is this rank's part of the source, summed into `to`.
    ReduceScatter(Move),
    /// Every rank's `from`, combined into `to`.
    AllReduce(Reduction, Vec<Move>),
}

#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Move {
    pub(in crate::backend) from: Region,
    pub(in crate::backend) to: Region,
}

impl Collective {
    fn new(binder: &Binder<'_>, source: Region, pull: Pull) -> Self {
        let moves = match &pull {
            Pull::Gather(moves) | Pull::AllReduce(_, moves) => moves.as_slice(),
            Pull::ReduceScatter(part) => std::slice::from_ref(part),
        };
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
        let part = Move { from: rows, to: binder.bytes(to, own)? };
        Ok(Self::new(binder, source, Pull::ReduceScatter(part)))
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
        Ok(Self::new(binder, source, Pull::AllReduce(reduction, moves)))
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
