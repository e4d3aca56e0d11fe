//! Gradients on their way to the optimizer: sum, accumulate, norm, vote.
//!
//! Laws:
//! - Sums have one order. A gradient's contributions are added in rank order in f32, block by block, and what
//!   is then made of a block is what accumulating the finished sum would make of it. Squares of the rank's real rows
//!   are added as `squares` says, by the sum that makes a block or by the norm; ranks are added in rank order in f64,
//!   and the norm is rounded once. So every rank computes the same vote from the same records.
//! - Main grads stay multiplied by the gradient scale. The vote carries what undoes it, and it is undone in two
//!   places: the norm in the vote, and the gradient where the optimizer reads it. A value that is
//!   not finite is looked for among the scaled ones: an overflow that scaling caused skips the step, and
//!   lowering the scale cures it. A norm too large by itself is judged unscaled and clipped, and no scale cures
//!   it.

use half::bf16;

use super::memory::{Arena, WriteSlice};
use super::op_error::OpError;
use super::squares::{self, OfRank};
use crate::local::{Accumulate, CastVote, GradNorm, NormSource, Round, RowSum, SumGradient, TakenSquares};
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, dequantize_mxfp8, quantize_mxfp8};
use warpweft_plan::layout::Region;
use warpweft_plan::op::{NormRecord, SQUARED_TOGETHER, SumTarget, Vote, WireType};

/// What is summed at a time: in MXFP8, whole blocks.
const BLOCK: usize = SQUARED_TOGETHER;
const _: () = assert!(BLOCK.is_multiple_of(WireType::BLOCK));

/// Where squares go that are taken of a main grad, if any are.
struct Squares<'a> {
    to: WriteSlice<'a, f64>,
    elements: usize,
}

impl<'a> Squares<'a> {
    fn of(taken: Option<TakenSquares>, arena: &'a Arena) -> Result<Self, OpError> {
        let (to, elements) = taken.map(|taken| (taken.to, taken.elements)).unwrap_or_default();
        Ok(Self { to: arena.write::<f64>(to)?, elements })
    }

    /// Takes those of the block with this number.
    fn take(&mut self, number: usize, block: &[f32]) {
        if let Some(square) = self.to.get_mut(number) {
            let counted = self.elements.saturating_sub(number * BLOCK).min(block.len());
            *square = squares::of_block(&block[..counted]);
        }
    }
}

/// Whether all values of a gradient are finite, as a call wrote it in f32 or bf16.
pub(super) fn is_finite(element: ElementType, region: Region, arena: &Arena) -> Result<bool, OpError> {
    const INFINITY: u32 = f32::INFINITY.to_bits();
    // The largest of all magnitudes, whose bits are ordered as they are: no branch, so it takes vectors.
    Ok(match element {
        ElementType::Bf16 => {
            let largest = |largest: u16, value: &u16| largest.max(value & !(1 << 15));
            arena.read::<u16>(region)?.iter().fold(0, largest) < (INFINITY >> 16) as u16
        }
        _ => {
            let largest = |largest: u32, value: &u32| largest.max(value & !(1 << 31));
            arena.read::<u32>(region)?.iter().fold(0, largest) < INFINITY
        }
    })
}

/// Adds a gradient into a sum.
pub(super) fn accumulate(op: &Accumulate, arena: &Arena) -> Result<(), OpError> {
    let from = arena.read::<f32>(op.from)?;
    let mut into = arena.write::<f32>(op.into)?;
    let mut taken = Squares::of(op.squares, arena)?;
    for (number, (into, from)) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)).enumerate() {
        let rows = into.iter_mut().zip(from);
        if op.first {
            rows.for_each(|(sum, value)| *sum = value * op.factor);
        } else {
            rows.for_each(|(sum, value)| *sum += value * op.factor);
        }
        taken.take(number, into);
    }
    Ok(())
}

/// Sums the rank's slices of gradients in rank order, and accumulates the sums where that is requested.
pub(super) fn sum_gradient(op: &SumGradient, arena: &Arena) -> Result<(), OpError> {
    let mut block = [0.0_f32; BLOCK];
    let mut decoded = [0.0_f32; BLOCK];
    for sum in &op.sums {
        let elements = sum.elements;
        let mut taken = Squares::of(sum.squares, arena)?;
        for begin in (0..elements).step_by(BLOCK) {
            let length = BLOCK.min(elements - begin);
            let block = &mut block[..length];
            for (position, slice) in sum.slices.iter().enumerate() {
                let part = || {
                    let part = slice.part(op.wire.bytes(begin), op.wire.bytes(length));
                    part.ok_or(OpError::Slice)
                };
                match op.wire {
                    WireType::F32 => {
                        add(block, arena.read::<f32>(part()?)?.iter().copied(), position == 0);
                    }
                    WireType::Bf16 => {
                        let values = arena.read::<bf16>(part()?)?;
                        add(block, values.iter().map(|value| value.to_f32()), position == 0);
                    }
                    WireType::Mxfp8 => {
                        let (codes, scales) = blocks(*slice, elements, (begin, length))?;
                        let values = &mut decoded[..length];
                        dequantize_mxfp8(&arena.read::<u8>(codes)?, &arena.read::<u8>(scales)?, values);
                        add(block, values.iter().copied(), position == 0);
                    }
                }
            }
            store(block, begin, sum, op.factor, &mut taken, arena)?;
        }
    }
    Ok(())
}

/// Stores a block of a sum as its target says: `begin` is its first element. Takes the squares of a main grad's.
fn store(
    block: &[f32],
    begin: usize,
    sum: &RowSum,
    factor: f32,
    taken: &mut Squares<'_>,
    arena: &Arena,
) -> Result<(), OpError> {
    let wire = sum.target.wire();
    let into = || sum.into.part(wire.bytes(begin), wire.bytes(block.len())).ok_or(OpError::Slice);
    match sum.target {
        SumTarget::Quantized => {
            let (codes, scales) = blocks(sum.into, sum.elements, (begin, block.len()))?;
            quantize_mxfp8(block, &mut arena.write::<u8>(codes)?, &mut arena.write::<u8>(scales)?);
        }
        SumTarget::Rows => arena.write::<f32>(into()?)?.copy_from_slice(block),
        SumTarget::Rounded => {
            let mut rows = arena.write::<bf16>(into()?)?;
            rows.iter_mut().zip(block).for_each(|(row, sum)| *row = bf16::from_f32(*sum));
        }
        SumTarget::First => {
            let mut rows = arena.write::<f32>(into()?)?;
            rows.iter_mut().zip(block).for_each(|(row, sum)| *row = sum * factor);
            taken.take(begin / BLOCK, &rows);
        }
        SumTarget::More => {
            let mut rows = arena.write::<f32>(into()?)?;
            rows.iter_mut().zip(block).for_each(|(row, sum)| *row += sum * factor);
            taken.take(begin / BLOCK, &rows);
        }
    }
    Ok(())
}

/// Adds a rank's values to the sum; the first rank's values begin it.
fn add(sums: &mut [f32], values: impl Iterator<Item = f32>, first: bool) {
    let sums = sums.iter_mut().zip(values);
    if first {
        sums.for_each(|(sum, value)| *sum = value)
    } else {
        sums.for_each(|(sum, value)| *sum += value)
    }
}

/// Where codes and scales are of some elements, first and number, of a unit of `elements`: whole blocks.
fn blocks(
    whole: Region,
    elements: usize,
    (begin, length): (usize, usize),
) -> Result<(Region, Region), OpError> {
    let scales = elements + begin / WireType::BLOCK;
    let parts = whole.part(begin, length).zip(whole.part(scales, length / WireType::BLOCK));
    parts.ok_or(OpError::Slice)
}

/// Rounds a full gradient to what it travels in: to bf16, to nearest even, or to MXFP8.
pub(super) fn round(op: &Round, arena: &Arena) -> Result<(), OpError> {
    if op.wire == WireType::Mxfp8 {
        return quantize(op, arena);
    }
    let from = arena.read::<f32>(op.from)?;
    let mut to = arena.write::<bf16>(op.to)?;
    for (rounded, value) in to.iter_mut().zip(from.iter()) {
        *rounded = bf16::from_f32(*value);
    }
    Ok(())
}

/// The same to MXFP8: unit after unit, each its codes and then its scales.
fn quantize(op: &Round, arena: &Arena) -> Result<(), OpError> {
    let mut widened = [0.0_f32; BLOCK];
    let (bytes, unit_bytes) = (op.element.bytes(), op.wire.bytes(op.unit));
    for number in 0..op.shape.elements().checked_div(op.unit).unwrap_or(0) {
        let to = op.to.part(unit_bytes * number, unit_bytes).ok_or(OpError::Slice)?;
        for begin in (0..op.unit).step_by(BLOCK) {
            let length = BLOCK.min(op.unit - begin);
            let from = op.from.part((number * op.unit + begin) * bytes, length * bytes);
            let from = from.ok_or(OpError::Slice)?;
            let (codes, scales) = blocks(to, op.unit, (begin, length))?;
            let (mut codes, mut scales) = (arena.write::<u8>(codes)?, arena.write::<u8>(scales)?);
            if op.element == ElementType::Bf16 {
                let values = arena.read::<bf16>(from)?;
                widened.iter_mut().zip(values.iter()).for_each(|(wide, value)| *wide = value.to_f32());
                quantize_mxfp8(&widened[..length], &mut codes, &mut scales);
            } else {
                quantize_mxfp8(&arena.read::<f32>(from)?, &mut codes, &mut scales);
            }
        }
    }
    Ok(())
}

/// The rank's share of the squared norm, and its fault word.
pub(super) fn grad_norm(op: &GradNorm, arena: &Arena) -> Result<(), OpError> {
    let mut squares = OfRank::new();
    for part in &op.parts {
        match part.source {
            NormSource::MainGrad(values) => squares.add_values(&arena.read::<f32>(values)?),
            NormSource::Squares(taken) => {
                let taken = arena.read::<f64>(taken)?;
                squares.add(taken.len(), |block| taken[block]);
            }
        }
    }
    let fault = arena.read::<u32>(op.fault)?.first().copied().unwrap_or(0);
    let record = NormRecord { squares: squares.sum(), fault, reserved: 0 };
    arena.write::<NormRecord>(op.record)?.fill(record);
    Ok(())
}

/// The verdict over the step.
pub(super) fn vote(op: &CastVote, arena: &Arena) -> Result<(), OpError> {
    let records = arena.read::<NormRecord>(op.records)?;
    let gradient_scale = arena.read::<f32>(op.gradient_scale)?.first().copied().unwrap_or(1.0);
    let mut steps = arena.write::<u32>(op.optimizer_step)?;
    for step in steps.iter_mut() {
        let vote = count(&records, *step, gradient_scale, op.max_norm);
        *step = vote.step;
        arena.write::<Vote>(op.vote)?.fill(vote);
    }
    Ok(())
}

/// The vote over the ranks' records, after `taken` optimizer steps, of gradients of a loss multiplied by
/// `gradient_scale`.
///
/// Squares are added in f64 in rank order, and the norm is rounded once, when their scale is taken away.
/// Clipping is the device variant: `min(max_norm / (norm + 1e-6), 1)`, always multiplied; a `max_norm` of 0
/// turns it off. Gradients whose squares would overflow f32 after that are faults, like those that are not
/// finite: their second moment would stay infinite. A closure's fault outweighs both, which it may have
/// caused.
fn count(records: &[NormRecord], taken: u32, gradient_scale: f32, max_norm: f32) -> Vote {
    let unscale = 1.0 / gradient_scale;
    let squares = records.iter().fold(0.0, |sum, record| sum + record.squares);
    let norm = (squares.sqrt() * f64::from(unscale)) as f32;
    let clip = if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
    let clipped = norm * clip;
    let fault = records.iter().position(|record| record.fault != 0);
    let vote = Vote { clip: 1.0, norm, unscale, step: taken, ..Vote::default() };
    match fault {
        Some(rank) => Vote {
            verdict: Vote::CLOSURE,
            fault_rank: RankId::at(rank).number(),
            fault_call: records[rank].fault - 1,
            ..vote
        },
        None if !(clipped * clipped).is_finite() => Vote { verdict: Vote::NON_FINITE, ..vote },
        None => Vote { verdict: Vote::CLEAN, clip, step: taken.saturating_add(1), ..vote },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(squares: f64, fault: u32) -> NormRecord {
        NormRecord { squares, fault, reserved: 0 }
    }

    #[test]
    fn a_clean_vote_counts_the_step_and_clips_by_the_global_norm() {
        let vote = count(&[record(9.0, 0), record(16.0, 0)], 6, 1.0, 1.0);
        assert_eq!((vote.verdict, vote.norm, vote.step), (Vote::CLEAN, 5.0, 7));
        assert_eq!(vote.clip, 1.0 / (5.0 + 1e-6));
        assert_eq!(count(&[record(9.0, 0)], 0, 1.0, 10.0).clip, 1.0);
        assert_eq!(count(&[record(9.0, 0)], 0, 1.0, 0.0).clip, 1.0);
    }

    #[test]
    fn a_non_finite_norm_skips_the_step_and_does_not_count_it() {
        for squares in [f64::NAN, f64::INFINITY] {
            let vote = count(&[record(1.0, 0), record(squares, 0)], 6, 1.0, 1.0);
            assert_eq!((vote.verdict, vote.step), (Vote::NON_FINITE, 6));
            assert!(vote.skips());
        }
        let huge = record(f64::from(f32::MAX), 0);
        assert!(count(&[huge, huge], 0, 1.0, 0.0).skips(), "a second moment would overflow");
        assert_eq!(count(&[huge, huge], 0, 1.0, 1.0).verdict, Vote::CLEAN, "clipped to 1");
        let beyond = record(f64::from(f32::MAX).powi(2) * 4.0, 0);
        assert!(count(&[beyond], 0, 1.0, 1.0).skips(), "no f32 holds the norm");
    }

    #[test]
    fn a_closure_fault_outweighs_a_non_finite_norm_and_names_the_first_rank() {
        let vote = count(&[record(f64::NAN, 0), record(1.0, 4), record(1.0, 2)], 6, 1.0, 1.0);
        assert_eq!((vote.verdict, vote.fault_rank, vote.fault_call, vote.step), (Vote::CLOSURE, 1, 3, 6));
    }

    #[test]
    fn the_norm_is_that_of_the_unscaled_gradient() {
        let plain = count(&[record(9.0, 0), record(16.0, 0)], 0, 1.0, 2.0);
        let scaled = count(&[record(9.0 * 64.0, 0), record(16.0 * 64.0, 0)], 0, 8.0, 2.0);
        assert_eq!((scaled.norm, scaled.clip, scaled.unscale), (plain.norm, plain.clip, 0.125));
        // Overflow of the scaled values is a fault, however small the true ones are.
        assert!(count(&[record(f64::INFINITY, 0)], 0, f32::MAX, 2.0).skips());
        for exponent in [-120, -76, -1, 76, 120] {
            let scale = 2.0_f32.powi(exponent);
            let square = f64::from(scale).powi(2);
            let scaled = count(&[record(9.0 * square, 0), record(16.0 * square, 0)], 0, scale, 2.0);
            assert_eq!((scaled.norm, scaled.clip), (plain.norm, plain.clip), "2^{exponent}");
        }
    }

    #[test]
    fn many_ranks_cost_the_norm_no_more_than_one_rounding() {
        let all = vec![record(f64::from(0.1_f32), 0); 1 << 14];
        let exact = (all.len() as f64 * f64::from(0.1_f32)).sqrt();
        assert_eq!(count(&all, 0, 1.0, 0.0).norm, exact as f32);
    }
}
