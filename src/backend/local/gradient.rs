//! Gradients on their way to the optimizer: accumulate, norm, vote.
//!
//! Laws:
//! - The mean over ranks and micro-batches is taken at accumulate: a contribution is multiplied by the f32
//!   reciprocal of the product of both numbers, rounded once, then added. For a power of two that is an exact
//!   division.
//! - Only real rows enter the norm, and each once: those of a sharded weight on the ranks of the first replica, a replicated
//!   weight on rank 0. Other replicas hold the same main grads bit for bit; their ranks tell their fault words.

use half::bf16;

use super::Refusal;
use super::binder::Binder;
use crate::format::Shape;
use crate::id::{RankId, SlotId, WeightId};
use crate::layout::Region;
use crate::model::Placement;
use crate::op::{NormRecord, Vote};

/// Adds a gradient into a sum.
#[derive(Debug)]
pub(in crate::backend) struct Accumulate {
    pub(in crate::backend) from: Region,
    pub(in crate::backend) into: Region,
    pub(in crate::backend) factor: f32,
    pub(in crate::backend) first: bool,
}

impl Accumulate {
    pub(super) fn resolve(
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
            factor: 1.0 / (binder.ranks() * binder.binding.micro_batches as usize) as f32,
            first,
        })
    }

    /// Adds a full gradient, as it is, to another.
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
        })
    }
}

/// Rounds a full gradient to bf16.
#[derive(Debug)]
pub(in crate::backend) struct Round {
    pub(in crate::backend) from: Region,
    pub(in crate::backend) to: Region,
    /// Of the padded weight: a row of the gradient is a row of it.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "the CPU rounds element by element"))]
    pub(in crate::backend) shape: Shape,
}

impl Round {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        weight: WeightId,
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let shape = binder.weight(weight)?.shard.padded();
        Ok(Self {
            from: binder.elements::<f32>(from, shape.elements())?,
            to: binder.elements::<bf16>(to, shape.elements())?,
            shape,
        })
    }
}

/// The rank's share of the squared norm, and its fault word.
#[derive(Debug)]
pub(in crate::backend) struct GradNorm {
    pub(in crate::backend) main_grads: Vec<Region>,
    pub(in crate::backend) fault: Region,
    pub(in crate::backend) record: Region,
}

impl GradNorm {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        main_grads: &[(WeightId, SlotId)],
        fault: SlotId,
        record: SlotId,
    ) -> Result<Self, Refusal> {
        let mut counted = Vec::new();
        for (weight, slot) in main_grads {
            let layout = binder.weight(*weight)?;
            let counts = match layout.placement {
                Placement::Sharded => binder.binding.weights.mesh.replica_of(binder.binding.rank) == 0,
                Placement::Replicated => binder.binding.rank == RankId::new(0),
            };
            if counts {
                counted.push(binder.elements::<f32>(*slot, binder.real_elements(layout))?);
            }
        }
        Ok(Self {
            main_grads: counted,
            fault: binder.elements::<u32>(fault, 1)?,
            record: binder.elements::<NormRecord>(record, 1)?,
        })
    }
}

/// The verdict over the step.
#[derive(Debug)]
pub(in crate::backend) struct CastVote {
    pub(in crate::backend) records: Region,
    pub(in crate::backend) optimizer_step: Region,
    pub(in crate::backend) loss_scale: Region,
    pub(in crate::backend) vote: Region,
    pub(in crate::backend) max_norm: f32,
}

impl CastVote {
    pub(super) fn resolve(
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
}
