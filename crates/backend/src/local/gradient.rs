//! Gradients on their way to the optimizer: sum, accumulate, norm, vote.
//!
//! Laws:
//! - The mean over ranks and micro-batches is taken at accumulate: a contribution is multiplied by the f32
//!   reciprocal of the product of both numbers, rounded once, then added. Ranks of a tensor-parallel group count as
//!   one, unless the tokens of a weight are alike on all of them: then each contributes the same. For a power of two
//!   that is an exact division. A sum that accumulates in the same pass does the same to the finished sum.
//! - Only real rows enter the norm, and each once: those of a sharded weight on the ranks of the first
//!   replica, a replicated weight on rank 0. Other replicas hold the same main grads bit for bit; their ranks
//!   contribute only their fault words. Slices of a shard are on all ranks, each once.

use super::Refusal;
use super::binder::Binder;
use super::collective::spread;
use warpweft_base::id::{RankId, SlotId, WeightId};
use warpweft_format::ElementType;
use warpweft_format::Shape;
use warpweft_plan::layout::{Region, WeightLayout};
use warpweft_plan::model::{Group, Placement};
use warpweft_plan::op::{
    self, NormRecord, RoundGradient, SQUARED_TOGETHER, SumPart, SumTarget, Vote, WireType,
};

/// Adds a gradient into a sum.
#[derive(Debug)]
pub struct Accumulate {
    pub from: Region,
    pub into: Region,
    pub factor: f32,
    pub first: bool,
    pub squares: Option<TakenSquares>,
}

impl Accumulate {
    pub fn resolve(binder: &Binder<'_>, op: &op::Accumulate) -> Result<Self, Refusal> {
        let layout = binder.weight(op.weight)?;
        let elements = layout.stored_elements();
        Ok(Self {
            from: binder.elements::<f32>(op.from, elements)?,
            into: binder.elements::<f32>(op.into, elements)?,
            factor: mean(binder, op.weight)?,
            first: op.first,
            squares: TakenSquares::resolve(binder, layout, op.squares)?,
        })
    }

    /// Adds a full gradient, undivided, to another.
    pub(super) fn whole(
        binder: &Binder<'_>,
        weight: WeightId,
        from: SlotId,
        into: SlotId,
    ) -> Result<Self, Refusal> {
        let elements = binder.weight(weight)?.shard.padded().elements();
        Ok(Self {
            from: binder.elements::<f32>(from, elements)?,
            into: binder.elements::<f32>(into, elements)?,
            factor: 1.0,
            first: false,
            squares: None,
        })
    }
}

/// Sums the rank's slices of gradients.
#[derive(Debug)]
pub struct SumGradient {
    /// The type of the slices.
    pub wire: WireType,
    /// The factor that turns a sum into the mean.
    pub factor: f32,
    pub sums: Vec<RowSum>,
}

/// The sum of one gradient's slices.
#[derive(Debug)]
pub struct RowSum {
    /// The slices, in rank order.
    pub slices: Vec<Region>,
    pub into: Region,
    /// Elements of each slice and of `into`.
    pub elements: usize,
    pub target: SumTarget,
    pub squares: Option<TakenSquares>,
}

/// Squares of a main grad as a sum leaves it, which the norm will count.
#[derive(Clone, Copy, Debug)]
pub struct TakenSquares {
    /// One f64 for every [`SQUARED_TOGETHER`] elements of the sum.
    pub to: Region,
    /// Of real rows, which alone count.
    pub elements: usize,
}

impl TakenSquares {
    /// Of a rank's rows of a weight.
    fn resolve(
        binder: &Binder<'_>,
        layout: &WeightLayout,
        slot: Option<SlotId>,
    ) -> Result<Option<Self>, Refusal> {
        let Some(slot) = slot else { return Ok(None) };
        let to = binder.elements::<f64>(slot, layout.stored_elements().div_ceil(SQUARED_TOGETHER))?;
        Ok(Some(Self { to, elements: binder.real_elements(layout) }))
    }
}

impl SumGradient {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        wire: WireType,
        group: Group,
        parts: &[SumPart],
    ) -> Result<Self, Refusal> {
        let mut sums = Vec::with_capacity(parts.len());
        let mut factors = Vec::with_capacity(parts.len());
        for part in parts {
            sums.extend(RowSum::resolve(binder, wire, group, part)?);
            factors.push(mean(binder, part.weight)?);
        }
        let factor = factors.first().copied().unwrap_or(1.0);
        if factors.iter().any(|other| *other != factor) {
            return Err("gradients of one sum are means over different numbers of ranks".into());
        }
        Ok(Self { wire, factor, sums })
    }
}

impl RowSum {
    /// One for each slice that the rank sums: they lie in runs, as they were exchanged. In MXFP8, one for each of
    /// their units.
    fn resolve(
        binder: &Binder<'_>,
        wire: WireType,
        group: Group,
        part: &SumPart,
    ) -> Result<Vec<Self>, Refusal> {
        spread(binder, part.weight)?;
        let layout = binder.weight(part.weight)?;
        let (ranks, runs) = binder.of_group(group)?;
        let position = binder.binding.weights.mesh.position(binder.binding.rank, group) as usize;
        let elements = layout.shard.summed_over(group).elements();
        let left = part.target.wire();
        let units = match (wire, left) {
            (WireType::Mxfp8, _) | (_, WireType::Mxfp8) => units(layout, elements)?,
            _ => 1,
        };
        let bytes = wire.bytes(elements);
        let of = |region: Region, bytes: usize, number: usize| {
            let slice = region.part(bytes * number, bytes);
            slice.ok_or_else(|| format!("a slot of `{}` has too few slices", layout.name))
        };
        let own = binder.bytes(part.own, bytes * ranks * runs)?;
        let received = match part.received {
            Some(slot) => binder.bytes(slot, bytes * (ranks - 1) * runs)?,
            None if ranks == 1 => Region::default(),
            None => {
                return Err(format!(
                    "nothing was received of `{}`, and {ranks} ranks give of it",
                    layout.name
                ));
            }
        };
        let into = binder.bytes(part.into, left.bytes(elements) * runs)?;
        if part.squares.is_some() && (runs * units != 1 || !part.target.accumulates()) {
            let name = &layout.name;
            let slices = runs * units;
            return Err(format!("squares of `{name}` are taken of {slices} slices that are no main grad"));
        }
        let squares = TakenSquares::resolve(binder, layout, part.squares)?;
        let sum = |run: usize, unit: usize| {
            let within = |whole: Region, wire: WireType| of(whole, wire.bytes(elements / units), unit);
            let slice = |region: Region, number: usize| within(of(region, bytes, number)?, wire);
            let peers = (0..ranks - 1).map(|number| slice(received, run * (ranks - 1) + number));
            let mut slices = peers.collect::<Result<Vec<_>, Refusal>>()?;
            slices.insert(position, slice(own, run * ranks + position)?);
            let into = within(of(into, left.bytes(elements), run)?, left)?;
            Ok(Self { slices, into, elements: elements / units, target: part.target, squares })
        };
        (0..runs)
            .flat_map(|run| (0..units).map(move |unit| (run, unit)))
            .map(|(run, unit)| sum(run, unit))
            .collect()
    }
}

/// How many units of MXFP8 this number of elements of a gradient is: each rank's rows, or slice of them, are one, its
/// codes and then its scales.
fn units(layout: &WeightLayout, elements: usize) -> Result<usize, Refusal> {
    let (unit, name) = (layout.stored_elements(), &layout.name);
    if !layout.shard.shape.cols.is_multiple_of(WireType::BLOCK) {
        let columns = layout.shard.shape.cols;
        return Err(format!("the {columns} columns of `{name}` are not whole blocks of {}", WireType::BLOCK));
    }
    Ok(elements.checked_div(unit).unwrap_or(1).max(1))
}

/// One over the number of ranks that count, and of micro-batches.
fn mean(binder: &Binder<'_>, weight: WeightId) -> Result<f32, Refusal> {
    let groups = binder.ranks() / binder.binding.weights.mesh.tensor() as usize;
    let ranks = groups * binder.weight(weight)?.shard.counts_tokens() as usize;
    Ok(1.0 / (ranks * binder.binding.micro_batches as usize) as f32)
}

/// Rounds a full gradient to what it travels in.
#[derive(Debug)]
pub struct Round {
    /// In f32 or bf16.
    pub element: ElementType,
    pub from: Region,
    /// In bf16 or MXFP8.
    pub wire: WireType,
    pub to: Region,
    /// The shape of the padded weight: a row of the gradient is a row of it.
    pub shape: Shape,
    /// In MXFP8: elements of one unit, which is codes and then their scales. Units follow each other.
    pub unit: usize,
}

impl Round {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        RoundGradient { weight, element, from, wire, to }: &RoundGradient,
    ) -> Result<Self, Refusal> {
        let (element, wire) = (*element, *wire);
        let layout = binder.weight(*weight)?;
        let (shape, name) = (layout.shard.padded(), &layout.name);
        let units = match (element, wire) {
            (ElementType::F32, WireType::Bf16) => 1,
            (ElementType::F32 | ElementType::Bf16, WireType::Mxfp8) => units(layout, shape.elements())?,
            _ => return Err(format!("nothing rounds a gradient of `{name}` from {element} to {wire}")),
        };
        Ok(Self {
            element,
            from: binder.bytes(*from, shape.elements() * element.bytes())?,
            wire,
            to: binder.bytes(*to, wire.bytes(shape.elements()))?,
            shape,
            unit: shape.elements() / units,
        })
    }
}

/// The rank's share of the squared norm, and its fault word.
#[derive(Debug)]
pub struct GradNorm {
    /// What this rank counts, as weights are numbered.
    pub parts: Vec<NormPart>,
    pub fault: Region,
    pub record: Region,
}

/// A weight's part of a rank's share.
#[derive(Clone, Copy, Debug)]
pub struct NormPart {
    /// Of real rows.
    pub elements: usize,
    pub source: NormSource,
}

/// Where its squares come from.
#[derive(Clone, Copy, Debug)]
pub enum NormSource {
    /// They are taken of these values.
    MainGrad(Region),
    /// A sum took them, for every [`SQUARED_TOGETHER`] elements.
    Squares(Region),
}

impl GradNorm {
    pub(super) fn resolve(binder: &Binder<'_>, op: &op::GradNorm) -> Result<Self, Refusal> {
        let main_grads = op.main_grads.iter().map(|part| (*part, false));
        let mut all: Vec<_> = main_grads.chain(op.squares.iter().map(|part| (*part, true))).collect();
        all.sort_by_key(|((weight, _), _)| *weight);
        let mut parts = Vec::new();
        for ((weight, slot), is_taken) in all {
            let layout = binder.weight(weight)?;
            let counts = match layout.placement {
                Placement::Sharded => {
                    let binding = &binder.binding;
                    binding.weights.mesh.position(binding.rank, layout.shard.copies()) == 0
                }
                Placement::Replicated => binder.binding.rank == RankId::new(0),
            };
            if counts {
                let elements = binder.real_elements(layout);
                let source = match is_taken {
                    true => NormSource::Squares(
                        binder.elements::<f64>(slot, elements.div_ceil(SQUARED_TOGETHER))?,
                    ),
                    false => NormSource::MainGrad(binder.elements::<f32>(slot, elements)?),
                };
                parts.push(NormPart { elements, source });
            }
        }
        Ok(Self {
            parts,
            fault: binder.elements::<u32>(op.fault, 1)?,
            record: binder.elements::<NormRecord>(op.record, 1)?,
        })
    }
}

/// The verdict over the step.
#[derive(Debug)]
pub struct CastVote {
    pub records: Region,
    pub optimizer_step: Region,
    pub gradient_scale: Region,
    pub vote: Region,
    pub max_norm: f32,
}

impl CastVote {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        records: SlotId,
        optimizer_step: SlotId,
        gradient_scale: SlotId,
        vote: SlotId,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            records: binder.elements::<NormRecord>(records, binder.ranks())?,
            optimizer_step: binder.elements::<u32>(optimizer_step, 1)?,
            gradient_scale: binder.elements::<f32>(gradient_scale, 1)?,
            vote: binder.elements::<Vote>(vote, 1)?,
            max_norm: binder.binding.settings.optimizer.max_norm,
        })
    }
}
