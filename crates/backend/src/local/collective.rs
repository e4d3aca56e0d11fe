//! Collectives on one rank: what it copies from its peers' arenas.
//!
//! Laws:
//! - Offsets are the same in every arena; lengths come from the shard layout, and numbers of ranks from the
//!   group that meets.
//! - A rank with no real rows moves its stored zero rows and joins like any other (CO-2 holds as
//!   well: what the slots hold does not matter).
//! - A gather of planes brings what the other ranks hold, and nothing else: the rank's own part, padding and
//!   rows that a format repeats are a task of their own ([`super::assemble`]). What needs values alone reads
//!   the rank's own shard instead ([`super::planes`]).

use super::Refusal;
use super::binder::Binder;
use super::filled::Filled;
use super::slices::Slices;
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{ElementType, PlaneSpec, Shape};
use warpweft_plan::layout::{PlaneRegions, Region};
use warpweft_plan::model::{CollectiveKind, Group};
use warpweft_plan::op::{
    self, Chunk, CollectiveCall, Division, GatherPart, NormRecord, ReducePart, Reduction, WireType,
};

/// One collective, bound to one rank.
#[derive(Debug)]
pub struct Collective {
    /// The ranks that meet.
    pub group: Group,
    /// The first source slot, to compare with the peers' source slots.
    pub(crate) source: Region,
    /// Bytes the rank receives from others.
    pub(crate) received: u64,
    pub pull: Pull,
}

/// What a rank pulls.
#[derive(Debug)]
pub enum Pull {
    /// The `from` of every other rank of the group, each to its place in `to`, which has one for every rank,
    /// one after the other.
    Gather(Vec<Move>),
    /// Bytes of the `from` of every other rank of the group, each to its own place in `to`.
    Chunk(Vec<PlanePiece>),
    /// The `from` of every rank of the group, one after the other into `to`, which has no more bytes.
    Concatenate(Move),
    /// For every part, the slices of this element type that the group's ranks have for this one, summed in
    /// f32.
    ReduceScatter(ElementType, Vec<Scatter>),
    /// For every part, the slices that the group's other ranks have for this one, side by side.
    ExchangeGradient(Vec<Slices>),
    /// The slices that all ranks of the group have for this one, its own among them.
    AllToAll(Slices),
    /// Of those slices the rows that are filled, and how many these are.
    Filled(Filled),
    /// The slices of `from` that all ranks of the group have for this one, summed into `to`, which is as long as a
    /// slice and of this element type too.
    SumSlices(ElementType, Move),
    /// The `from` of every rank of the group, combined into `to`, and how the ranks share that work.
    AllReduce(Combination, Division, Vec<Move>),
}

/// How values of several ranks become one: in rank order in f32, rounded once to the type that they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    pub reduction: Reduction,
    /// f32 or bf16.
    pub element: ElementType,
}

impl Combination {
    /// Of f32 values.
    pub const fn of_f32(reduction: Reduction) -> Self {
        Self { reduction, element: ElementType::F32 }
    }
}

/// Some bytes of every rank's share of one plane.
#[derive(Clone, Copy, Debug)]
pub struct PlanePiece {
    /// The same place in every arena.
    pub from: Region,
    /// The gathered plane.
    pub to: Region,
    /// Where in it rank 0's bytes go.
    pub first: usize,
    /// The distance from there to where the next rank's go.
    pub stride: usize,
}

/// One gradient of a reduction.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    /// All ranks' slices, in rank order; the same place in every arena.
    pub source: Region,
    /// From this rank's slice to its f32 sum.
    pub own: Move,
}

#[derive(Clone, Copy, Debug)]
pub struct Move {
    pub from: Region,
    pub to: Region,
}

impl Collective {
    fn new(binder: &Binder<'_>, group: Group, source: Region, pull: Pull) -> Self {
        let each: usize = match &pull {
            Pull::Gather(moves) => moves.iter().map(|part| part.from.bytes).sum(),
            Pull::AllReduce(_, _, moves) => op::given_to_each(
                moves.iter().map(|part| part.from.bytes),
                binder.binding.weights.mesh.size(group),
            ),
            Pull::Chunk(pieces) => pieces.iter().map(|piece| piece.from.bytes).sum(),
            Pull::Concatenate(part) => part.from.bytes,
            Pull::ReduceScatter(_, parts) => parts.iter().map(|part| part.own.from.bytes).sum(),
            Pull::ExchangeGradient(parts) => parts.iter().map(|part| part.bytes).sum(),
            Pull::AllToAll(slices) => slices.bytes,
            Pull::Filled(filled) => filled.most_of_each(),
            Pull::SumSlices(_, part) => part.to.bytes,
        };
        let peers = binder.binding.weights.mesh.size(group) - 1;
        let received = (each as u64).saturating_mul(u64::from(peers));
        Self { group, source, received, pull }
    }

    pub(super) fn all_gather(
        binder: &Binder<'_>,
        group: Group,
        parts: &[GatherPart],
    ) -> Result<Self, Refusal> {
        let (mut moves, mut first) = (Vec::new(), None);
        for part in parts {
            let Gathered { source, planes, publishes, .. } = gathered(binder, part)?;
            match publishes {
                true => over_replicas(binder, part.weight, group)?,
                false => over(binder, part.weight, group)?,
            }
            first.get_or_insert(source);
            moves.extend(planes);
        }
        let shards = binder.binding.weights.mesh.size(group) as usize;
        moves.iter().try_for_each(|part| fits(*part, shards))?;
        Ok(Self::new(binder, group, first.unwrap_or_default(), Pull::Gather(moves)))
    }

    /// Some bytes of a weight's shards.
    pub(super) fn gather_chunk(
        binder: &Binder<'_>,
        group: Group,
        part: &GatherPart,
        chunk: Chunk,
    ) -> Result<Self, Refusal> {
        over(binder, part.weight, group)?;
        let shards = binder.weight(part.weight)?.shard.ranks as usize;
        let Gathered { source, planes: moves, .. } = gathered(binder, part)?;
        let whole: usize = moves.iter().map(|plane| plane.from.bytes).sum();
        if chunk.begin >= chunk.end || chunk.end > whole {
            return Err(format!("bytes {}..{} are no chunk of {whole}", chunk.begin, chunk.end));
        }
        let (mut pieces, mut begin) = (Vec::new(), 0);
        for plane in moves {
            fits(plane, shards)?;
            let Move { from, to } = plane;
            let first = chunk.begin.clamp(begin, begin + from.bytes) - begin;
            let bytes = chunk.end.clamp(begin, begin + from.bytes) - begin - first;
            if let Some(moved) = from.part(first, bytes).filter(|moved| moved.bytes > 0) {
                pieces.push(PlanePiece { from: moved, to, first, stride: from.bytes });
            }
            begin += from.bytes;
        }
        Ok(Self::new(binder, group, source, Pull::Chunk(pieces)))
    }

    pub(super) fn gather_records(binder: &Binder<'_>, from: SlotId, to: SlotId) -> Result<Self, Refusal> {
        let from = binder.elements::<NormRecord>(from, 1)?;
        let to = binder.elements::<NormRecord>(to, binder.ranks())?;
        Ok(Self::new(binder, Group::World, from, Pull::Concatenate(Move { from, to })))
    }

    pub(super) fn reduce_scatter(
        binder: &Binder<'_>,
        group: Group,
        wire: WireType,
        parts: &[ReducePart],
    ) -> Result<Self, Refusal> {
        let element = wire.element().ok_or_else(|| format!("no collective sums gradients in {wire}"))?;
        let mut scatters = Vec::new();
        for ReducePart { weight, from, to } in parts {
            let layout = binder.weight(*weight)?;
            over(binder, *weight, group)?;
            let (shard, shards) = binder.shard_of(layout)?;
            let own = layout.stored_elements() * element.bytes();
            let source = binder.bytes(*from, own * shards)?;
            let rows = source.part(own * shard, own);
            let rows = rows.ok_or_else(|| format!("the gradient of `{}` has too few rows", layout.name))?;
            let sum = binder.elements::<f32>(*to, layout.stored_elements())?;
            scatters.push(Scatter { source, own: Move { from: rows, to: sum } });
        }
        let source = scatters.first().map_or_else(Region::default, |first| first.source);
        Ok(Self::new(binder, group, source, Pull::ReduceScatter(element, scatters)))
    }

    /// A rank has as many runs of slices, one for each rank of the group, as it takes slices from each.
    pub(super) fn exchange_gradient(
        binder: &Binder<'_>,
        wire: WireType,
        group: Group,
        parts: &[ReducePart],
    ) -> Result<Self, Refusal> {
        let (ranks, runs) = binder.of_group(group)?;
        let mut all = Vec::with_capacity(parts.len() * runs);
        for ReducePart { weight, from, to } in parts {
            spread(binder, *weight)?;
            let slice = binder.weight(*weight)?.shard.summed_over(group);
            let bytes = wire.bytes(slice.elements());
            let source = binder.bytes(*from, bytes * ranks * runs)?;
            let received = binder.bytes(*to, bytes * (ranks - 1) * runs)?;
            let run = |region: Region, slices: usize, run: usize| Region {
                offset: region.offset + bytes * slices * run,
                bytes: bytes * slices,
            };
            all.extend((0..runs).map(|number| Slices {
                source: run(source, ranks, number),
                received: run(received, ranks - 1, number),
                with_own: false,
                bytes,
            }));
        }
        let source = all.first().map_or_else(Region::default, |first| first.source);
        Ok(Self::new(binder, group, source, Pull::ExchangeGradient(all)))
    }

    pub(super) fn collective_call(binder: &Binder<'_>, op: &CollectiveCall) -> Result<Self, Refusal> {
        let CollectiveCall { kind, group, from, to, counts, .. } = *op;
        let ranks = binder.binding.weights.mesh.size(group);
        // What is moved alone may be of any type.
        let element = if kind.combines() { combined_in(binder.element(from)?)? } else { ElementType::U8 };
        let from = binder.region(from)?;
        let received = kind.received(from.bytes, ranks);
        let received = received.ok_or_else(|| format!("{} bytes are no {ranks} parts", from.bytes))?;
        let to = binder.bytes(to, received)?;
        let pull = match kind {
            CollectiveKind::AllGather => Pull::Concatenate(Move { from, to }),
            CollectiveKind::ReduceScatter => Pull::SumSlices(element, Move { from, to }),
            CollectiveKind::AllToAll => {
                let bytes = kind.given_to_each(from.bytes, ranks);
                let slices = Slices { source: from, received: to, with_own: true, bytes };
                match counts {
                    Some(counts) => Pull::Filled(Filled::resolve(binder, slices, ranks, counts)?),
                    None => Pull::AllToAll(slices),
                }
            }
            CollectiveKind::Sum => {
                combined(Combination { reduction: Reduction::Sum, element }, ranks, vec![Move { from, to }])
            }
            CollectiveKind::Max => {
                combined(Combination { reduction: Reduction::Max, element }, ranks, vec![Move { from, to }])
            }
        };
        Ok(Self::new(binder, group, from, pull))
    }

    /// One part of equal size for each rank that shares the weights, and of each.
    pub(super) fn exchange_rows(
        binder: &Binder<'_>,
        group: Group,
        weights: &[WeightId],
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let first = weights.first().ok_or("a round of no weight")?;
        over(binder, *first, group)?;
        let bytes = binder.weight(*first)?.stored_elements().saturating_mul(size_of::<f32>());
        let all = bytes.saturating_mul(binder.binding.weights.mesh.size(group) as usize);
        let (source, received) = (binder.bytes(from, all)?, binder.bytes(to, all)?);
        let pull = Pull::AllToAll(Slices { source, received, with_own: true, bytes });
        Ok(Self::new(binder, group, source, pull))
    }

    pub(super) fn all_reduce(
        binder: &Binder<'_>,
        reduction: Reduction,
        group: Group,
        pairs: &[(SlotId, SlotId)],
    ) -> Result<Self, Refusal> {
        let mut moves = Vec::new();
        for (from, to) in pairs {
            let from = binder.region(*from)?;
            moves.push(Move { from, to: binder.bytes(*to, from.bytes)? });
        }
        let source = moves.first().map_or_else(Region::default, |first| first.from);
        let ranks = binder.binding.weights.mesh.size(group);
        Ok(Self::new(binder, group, source, combined(Combination::of_f32(reduction), ranks, moves)))
    }
}

/// What `ranks` ranks hold, combined.
fn combined(combination: Combination, ranks: u32, moves: Vec<Move>) -> Pull {
    let division = Division::of(moves.iter().map(|part| part.from.bytes), ranks);
    Pull::AllReduce(combination, division, moves)
}

/// One weight of a gather: shards of all ranks that share it, or slices of one shard from all replicas.
pub(super) struct Gathered {
    /// The slot of what the rank gives.
    pub(super) source: Region,
    /// Its planes with where they go: data first, then scales.
    pub(super) planes: Vec<Move>,
    /// Which place there is the rank's own, and how many there are.
    pub(super) places: (usize, usize),
    /// The shape of all that is gathered.
    pub(super) shape: Shape,
    /// Are slices gathered, to publish a shard?
    pub(super) publishes: bool,
}

/// What a gather of one weight takes and fills.
pub(super) fn gathered(binder: &Binder<'_>, part: &GatherPart) -> Result<Gathered, Refusal> {
    let GatherPart { weight, orientation, from, to } = *part;
    let layout = binder.weight(weight)?;
    spread(binder, weight)?;
    let publishes = binder.is_published(to);
    let (shard, gathered) = match publishes {
        true => (layout.shard_planes(orientation), layout.published_planes(orientation)),
        false => (layout.published_planes(orientation), layout.gathered_planes(orientation)),
    };
    let (places, shape) = match publishes {
        true => (binder.slice_of(layout)?, layout.shard.published()),
        false => (binder.shard_of(layout)?, layout.shard.padded()),
    };
    let source = binder.bytes(from, PlaneRegions::bytes(&shard))?;
    let target = binder.bytes(to, PlaneRegions::bytes(&gathered))?;
    if shard.len() != gathered.len() || shard.iter().zip(&gathered).any(|(part, whole)| !stacks(part, whole))
    {
        return Err(format!("shards of `{}` do not lie one after the other when gathered", layout.name));
    }
    let (shard, gathered) = (PlaneRegions::within(source, &shard), PlaneRegions::within(target, &gathered));
    let planes =
        [Move { from: shard.data, to: gathered.data }, Move { from: shard.scale, to: gathered.scale }];
    let planes = planes.into_iter().filter(|plane| plane.to.bytes > 0).collect();
    Ok(Gathered { source, planes, places, shape, publishes })
}

/// Checks that there is room for the parts of that many ranks.
fn fits(part: Move, ranks: usize) -> Result<(), Refusal> {
    if part.from.bytes.saturating_mul(ranks) <= part.to.bytes {
        return Ok(());
    }
    Err(format!("{ranks} parts of {} bytes do not fit", part.from.bytes))
}

/// Collectives of one weight need a shard of it on every rank that it is sharded over.
pub(super) fn spread(binder: &Binder<'_>, weight: WeightId) -> Result<(), Refusal> {
    let layout = binder.weight(weight)?;
    let ranks = binder.binding.weights.mesh.size(layout.shard.group());
    if layout.shard.ranks == ranks {
        return Ok(());
    }
    Err(format!("`{}` is not sharded over {ranks} ranks", layout.name))
}

/// The same, and the ranks must be those of `group`.
fn over(binder: &Binder<'_>, weight: WeightId, group: Group) -> Result<(), Refusal> {
    spread(binder, weight)?;
    let layout = binder.weight(weight)?;
    if binder.binding.weights.mesh.alike(group, layout.shard.group()) {
        return Ok(());
    }
    Err(format!(
        "`{}` is sharded over the {} group and not over the {group} group",
        layout.name,
        layout.shard.group()
    ))
}

/// Slices of a shard are on the ranks at its place in the replicas of an instance, those of an expert's on its copies.
fn over_replicas(binder: &Binder<'_>, weight: WeightId, group: Group) -> Result<(), Refusal> {
    let layout = binder.weight(weight)?;
    let mesh = binder.binding.weights.mesh;
    let slicers = layout.shard.slicers(mesh);
    if mesh.alike(group, slicers) {
        return Ok(());
    }
    Err(format!("slices of `{}` are with the {slicers} group and not with the {group} group", layout.name))
}

/// Whether the rows of `whole` are as long as those of `part`, so that parts stacked one after the other give it.
fn stacks(part: &PlaneSpec, whole: &PlaneSpec) -> bool {
    part.row_bytes() == whole.row_bytes()
}

/// Values of buffers are combined in two element types.
fn combined_in(element: ElementType) -> Result<ElementType, Refusal> {
    match element {
        ElementType::F32 | ElementType::Bf16 => Ok(element),
        ElementType::U8 | ElementType::U32 => {
            Err(format!("values of ranks are combined in f32 or bf16, not in {element}"))
        }
    }
}
