//! Gradients on their way to the optimizer: accumulate, norm, vote.
//!
//! Laws:
//! - The mean over ranks is taken here: a contribution is multiplied by the f32 reciprocal of the
//!   number of ranks, rounded once, then added. For a power of two that is an exact division.
//! - Sums have one order. Squares are added in f64 over eight fixed strides of the rank's real rows, weight
//!   after weight, and rounded to f32 once; ranks are added in rank order in f32. So every rank
//!   computes the same vote from the same records.
//! - A replicated weight counts once, on rank 0.
//! - Main grads stay multiplied by the loss scale. The vote carries what undoes it, so it is undone in two
//!   places: the norm there, and the gradient where the optimizer reads it. Fault detection sees the
//!   scaled values: an overflow that scaling caused skips the step, and lowering the scale cures it.

use super::bind::{Binder, Refusal};
use super::memory::Arena;
use super::ops::OpError;
use crate::id::{RankId, SlotId, WeightId};
use crate::layout::Region;
use crate::model::Placement;
use crate::op::{NormRecord, Vote};

/// Adds a gradient into a sum.
#[derive(Debug)]
pub(super) struct Accumulate {
    from: Region,
    into: Region,
    factor: f32,
    first: bool,
}

impl Accumulate {
    pub(super) fn bind(
        binder: &Binder<'_>,
        weight: WeightId,
        from: SlotId,
        into: SlotId,
        first: bool,
    ) -> Result<Self, Refusal> {
        let elements = binder.weight(weight)?.stored_elements();
        Ok(Self {
            from: binder.elements::<f32>(from, elements)?,
            into: binder.elements::<f32>(into, elements)?,
            factor: 1.0 / binder.ranks() as f32,
            first,
        })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let from = arena.read::<f32>(self.from)?;
        let mut into = arena.write::<f32>(self.into)?;
        if self.first {
            for (sum, value) in into.iter_mut().zip(from.iter()) {
                *sum = value * self.factor;
            }
        } else {
            for (sum, value) in into.iter_mut().zip(from.iter()) {
                *sum += value * self.factor;
            }
        }
        Ok(())
    }
}

/// The rank's share of the squared norm, and its fault word.
#[derive(Debug)]
pub(super) struct GradNorm {
    main_grads: Vec<Region>,
    fault: Region,
    record: Region,
}

impl GradNorm {
    pub(super) fn bind(
        binder: &Binder<'_>,
        main_grads: &[(WeightId, SlotId)],
        fault: SlotId,
        record: SlotId,
    ) -> Result<Self, Refusal> {
        let mut counted = Vec::new();
        for (weight, slot) in main_grads {
            let layout = binder.weight(*weight)?;
            if layout.placement == Placement::Sharded || binder.binding.rank == RankId::new(0) {
                counted.push(binder.elements::<f32>(*slot, binder.real_elements(layout))?);
            }
        }
        Ok(Self {
            main_grads: counted,
            fault: binder.elements::<u32>(fault, 1)?,
            record: binder.elements::<NormRecord>(record, 1)?,
        })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let mut sum = 0.0;
        for region in &self.main_grads {
            sum += squares(&arena.read::<f32>(*region)?);
        }
        let fault = arena.read::<u32>(self.fault)?.first().copied().unwrap_or(0);
        let record = NormRecord { squares: sum as f32, fault, reserved: [0; 2] };
        arena.write::<NormRecord>(self.record)?.fill(record);
        Ok(())
    }
}

/// Sum of squares in f64, where each square is exact.
fn squares(values: &[f32]) -> f64 {
    const STRIDES: usize = 8;
    let mut sums = [0.0_f64; STRIDES];
    let (chunks, rest) = values.as_chunks::<STRIDES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += f64::from(*value) * f64::from(*value);
    }
    sums.iter().sum()
}

/// The verdict over the step.
#[derive(Debug)]
pub(super) struct CastVote {
    records: Region,
    optimizer_step: Region,
    loss_scale: Region,
    vote: Region,
    max_norm: f32,
}

impl CastVote {
    pub(super) fn bind(
        binder: &Binder<'_>,
        records: SlotId,
        optimizer_step: SlotId,
        loss_scale: SlotId,
        vote: SlotId,
    ) -> Result<Self, Refusal> {
        Ok(Self {
            records: binder.elements::<NormRecord>(records, binder.ranks())?,
            optimizer_step: binder.elements::<u32>(optimizer_step, 1)?,
            loss_scale: binder.elements::<f32>(loss_scale, 1)?,
            vote: binder.elements::<Vote>(vote, 1)?,
            max_norm: binder.binding.settings.optimizer.max_norm,
        })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let records = arena.read::<NormRecord>(self.records)?;
        let loss_scale = arena.read::<f32>(self.loss_scale)?.first().copied().unwrap_or(1.0);
        let mut steps = arena.write::<u32>(self.optimizer_step)?;
        for step in steps.iter_mut() {
            let vote = count(&records, *step, loss_scale, self.max_norm);
            *step = vote.step;
            arena.write::<Vote>(self.vote)?.fill(vote);
        }
        Ok(())
    }
}

/// The vote over the ranks' records, after `taken` optimizer steps, of gradients of a loss multiplied by
/// `loss_scale`.
///
/// Clipping is the device variant: `min(max_norm / (norm + 1e-6), 1)`, always multiplied; a
/// `max_norm` of 0 turns it off. A closure's fault outweighs a non-finite norm, which it may have
/// caused.
fn count(records: &[NormRecord], taken: u32, loss_scale: f32, max_norm: f32) -> Vote {
    let unscale = 1.0 / loss_scale;
    let norm = records.iter().fold(0.0, |sum, record| sum + record.squares).sqrt() * unscale;
    let fault = records.iter().position(|record| record.fault != 0);
    let vote = Vote { clip: 1.0, norm, unscale, step: taken, ..Vote::default() };
    match fault {
        Some(rank) => Vote {
            verdict: Vote::CLOSURE,
            fault_rank: RankId::at(rank).number(),
            fault_call: records[rank].fault - 1,
            ..vote
        },
        None if !norm.is_finite() => Vote { verdict: Vote::NON_FINITE, ..vote },
        None => Vote {
            verdict: Vote::CLEAN,
            clip: if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 },
            step: taken.saturating_add(1),
            ..vote
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(squares: f32, fault: u32) -> NormRecord {
        NormRecord { squares, fault, reserved: [0; 2] }
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
        for squares in [f32::NAN, f32::INFINITY] {
            let vote = count(&[record(1.0, 0), record(squares, 0)], 6, 1.0, 1.0);
            assert_eq!((vote.verdict, vote.step), (Vote::NON_FINITE, 6));
            assert!(vote.skips());
        }
        assert!(count(&[record(f32::MAX, 0), record(f32::MAX, 0)], 0, 1.0, 1.0).skips(), "the sum overflows");
    }

    #[test]
    fn a_closure_fault_outweighs_a_non_finite_norm_and_names_the_first_rank() {
        let vote = count(&[record(f32::NAN, 0), record(1.0, 4), record(1.0, 2)], 6, 1.0, 1.0);
        assert_eq!((vote.verdict, vote.fault_rank, vote.fault_call, vote.step), (Vote::CLOSURE, 1, 3, 6));
    }

    #[test]
    fn the_norm_is_that_of_the_unscaled_gradient() {
        let plain = count(&[record(9.0, 0), record(16.0, 0)], 0, 1.0, 2.0);
        let scaled = count(&[record(9.0 * 64.0, 0), record(16.0 * 64.0, 0)], 0, 8.0, 2.0);
        assert_eq!((scaled.norm, scaled.clip, scaled.unscale), (plain.norm, plain.clip, 0.125));
        // Overflow of the scaled values is a fault, however small the true ones are.
        assert!(count(&[record(f32::INFINITY, 0)], 0, f32::MAX, 2.0).skips());
    }

    #[test]
    fn squares_are_summed_without_losing_small_ones() {
        let mut values = vec![1e-4_f32; 1 << 20];
        values[0] = 1e2;
        let expected = 1e4 + (values.len() - 1) as f64 * (f64::from(1e-4_f32) * f64::from(1e-4_f32));
        assert!((squares(&values) / expected - 1.0).abs() < 1e-9);
        assert!(squares(&[f32::MAX; 3]).is_finite());
        assert!(squares(&[1.0, f32::NAN]).is_nan());
    }
}
