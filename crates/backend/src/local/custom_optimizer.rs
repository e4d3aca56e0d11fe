//! A custom optimizer on a rank's slices and matrices.
//!
//! Law: what the optimizer is lent, and what is checked after it, are real rows alone. Every value that an update
//! leaves is held to the same bounds as what Adam leaves; what was prepared and transformed before shows in it.

use std::sync::Arc;

use super::Refusal;
use super::binder::Binder;
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{Shape, Via};
use warpweft_plan::compute::{
    BoundMatrix, BoundPreparation, BoundPrepared, BoundRows, BoundState, BoundTransformation, BoundUpdate,
    Lent, OptimizerTask, UpdatedWeight,
};
use warpweft_plan::layout::{Region, WeightLayout};
use warpweft_plan::model::Block;
use warpweft_plan::op::{PrepareOperand, UpdateOperand, Vote};

/// A part of a custom optimizer.
#[derive(Debug)]
pub struct CustomOptimizer {
    /// What the optimizer is lent.
    pub task: Arc<OptimizerTask>,
    pub vote: Region,
    /// What is checked after it: masters and states, each with the largest magnitude from which training goes on.
    pub checked: Vec<(Region, f32)>,
}

impl CustomOptimizer {
    /// An update of weights of one bucket and parameter group.
    pub(super) fn update(
        binder: &Binder<'_>,
        via: Via,
        bucket: BucketId,
        operands: &[UpdateOperand],
        (vote, hyperparameters): (SlotId, SlotId),
        transformed: Option<SlotId>,
    ) -> Result<Self, Refusal> {
        let weights = binder.binding.weights;
        let (mut states, mut checked) = (Vec::new(), Vec::new());
        for (place, operand) in operands.iter().enumerate() {
            let layout = binder.weight(operand.weight)?;
            let elements = binder.real_elements(layout);
            let real = |slot| binder.elements::<f32>(slot, elements);
            let master = real(operand.master)?;
            let kept: Vec<Region> = operand.kept.iter().map(|slot| real(*slot)).collect::<Result<_, _>>()?;
            checked.push((master, via.largest(layout.format)));
            checked.extend(kept.iter().map(|list| (*list, weights.state.largest_moment())));
            let weight = updated(binder, operand.weight, layout);
            let main_grad = real(operand.main_grad)?;
            let hyperparameters = binder.hyperparameters(hyperparameters, operand.weight)?;
            states.push(BoundState {
                rows: BoundRows { weight, kept, main_grad, hyperparameters, lent: Lent::default() },
                master,
                transformed: transformed.map(|slot| rows(binder, slot, place, layout)).transpose()?,
            });
        }
        states.sort_unstable_by_key(|state: &BoundState| state.rows.weight.id);
        let vote = binder.elements::<Vote>(vote, 1)?;
        let name = name("update", states.iter().map(|state| &state.rows.weight), &bucket.to_string());
        let update = BoundUpdate { program: binder.binding.program.to_owned(), name, states, vote };
        Ok(Self { task: Arc::new(OptimizerTask::Update(update)), vote, checked })
    }

    /// The rows of a round of matrices. Its lists are checked after the update, which may change them again.
    pub(super) fn prepare(
        binder: &Binder<'_>,
        bucket: BucketId,
        operands: &[PrepareOperand],
        (vote, hyperparameters): (SlotId, SlotId),
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let mut bound = Vec::with_capacity(operands.len());
        for (place, operand) in operands.iter().enumerate() {
            let layout = binder.weight(operand.weight)?;
            let elements = binder.real_elements(layout);
            let real = |slot| binder.elements::<f32>(slot, elements);
            let weight = updated(binder, operand.weight, layout);
            let kept = operand.kept.iter().map(|slot| real(*slot)).collect::<Result<_, _>>()?;
            let main_grad = real(operand.main_grad)?;
            let hyperparameters = binder.hyperparameters(hyperparameters, operand.weight)?;
            bound.push(BoundPrepared {
                rows: BoundRows { weight, kept, main_grad, hyperparameters, lent: Lent::default() },
                prepared: rows(binder, to, place, layout)?,
            });
        }
        bound.sort_unstable_by_key(|one: &BoundPrepared| one.rows.weight.id);
        let vote = binder.elements::<Vote>(vote, 1)?;
        let name = name("preparation", bound.iter().map(|one| &one.rows.weight), &bucket.to_string());
        let program = binder.binding.program.to_owned();
        let task = OptimizerTask::Prepare(BoundPreparation {
            program,
            name,
            rows: bound,
            vote,
            spoiled: binder.binding.spoiled,
        });
        Ok(Self { task: Arc::new(task), vote, checked: Vec::new() })
    }

    /// The matrix of a round that this rank has, if there is one.
    pub(super) fn transform(
        binder: &Binder<'_>,
        weights: &[WeightId],
        vote: SlotId,
        from: SlotId,
        to: SlotId,
    ) -> Result<Self, Refusal> {
        let place = match weights.first() {
            Some(first) => binder.shard_of(binder.weight(*first)?)?.0,
            None => 0,
        };
        let matrix = match weights.get(place) {
            None => None,
            Some(weight) => {
                let layout = binder.weight(*weight)?;
                let shape = layout.shard.shape;
                let whole = |slot| binder.elements::<f32>(slot, shape.elements());
                let all = Block { first: Shape { rows: 0, cols: 0 }, shape };
                let weight = UpdatedWeight::of(*weight, layout, std::iter::once(all), 0..shape.cols);
                Some(BoundMatrix { weight, from: whole(from)?, to: whole(to)?, lent: Lent::default() })
            }
        };
        let vote = binder.elements::<Vote>(vote, 1)?;
        let name = name("transformation", matrix.iter().map(|matrix| &matrix.weight), "no matrix");
        let program = binder.binding.program.to_owned();
        let task = OptimizerTask::Transform(BoundTransformation {
            program,
            name,
            matrix,
            vote,
            spoiled: binder.binding.spoiled,
        });
        Ok(Self { task: Arc::new(task), vote, checked: Vec::new() })
    }
}

/// The rank's rows of the weight at `place` of a round, in a slot that has those of all.
fn rows(binder: &Binder<'_>, slot: SlotId, place: usize, layout: &WeightLayout) -> Result<Region, Refusal> {
    let stored = layout.stored_elements().saturating_mul(size_of::<f32>());
    let end = stored.saturating_mul(place.saturating_add(1));
    let part = binder.bytes(slot, end)?.part(end - stored, binder.real_elements(layout) * size_of::<f32>());
    part.ok_or_else(|| format!("`{}` has more rows than a shard stores", layout.name))
}

/// What a part of the optimizer is called, for messages.
fn name<'a>(
    part: &str,
    mut weights: impl ExactSizeIterator<Item = &'a UpdatedWeight>,
    otherwise: &str,
) -> String {
    let others = weights.len().saturating_sub(1);
    match weights.next() {
        None => format!("{part} of {otherwise}"),
        Some(first) if others == 0 => format!("{part} of `{}`", first.name),
        Some(first) => format!("{part} of `{}` and {others} more weights", first.name),
    }
}

/// What a custom optimizer gets to know of the rank's rows of a weight.
fn updated(binder: &Binder<'_>, weight: WeightId, layout: &WeightLayout) -> UpdatedWeight {
    let rank = binder.binding.rank;
    UpdatedWeight::of(weight, layout, layout.shard.blocks_of(rank), layout.shard.columns_of(rank))
}
