//! The trainer's own rule on a rank's slices.
//!
//! Law: what the rule is lent, and what is looked at behind it, are the rank's real rows alone. Every value that it
//! leaves is held to the same bounds as what Adam leaves.

use std::sync::Arc;

use super::Refusal;
use super::binder::Binder;
use super::optimizer::parameters;
use crate::compute::{BoundState, BoundUpdate, Lent, UpdatedWeight};
use crate::format::Via;
use crate::id::{BucketId, SlotId};
use crate::layout::{OptimizerSettings, Region};
use crate::op::{UpdateOperand, Vote};

/// The trainer's own rule, over weights of one bucket and parameter group.
#[derive(Debug)]
pub(in crate::backend) struct Update {
    /// What the rule is lent.
    pub(in crate::backend) update: Arc<BoundUpdate>,
    pub(in crate::backend) vote: Region,
    /// What is looked at behind it: masters and states, each with the largest magnitude from which training goes on.
    pub(in crate::backend) looked_at: Vec<(Region, f32)>,
}

impl Update {
    pub(super) fn resolve(
        binder: &Binder<'_>,
        (settings, via): (OptimizerSettings, Via),
        bucket: BucketId,
        operands: &[UpdateOperand],
        vote: SlotId,
        learning_rate: SlotId,
    ) -> Result<Self, Refusal> {
        let weights = binder.binding.weights;
        let (mut states, mut looked_at) = (Vec::new(), Vec::new());
        let (weight_decay, learning_rate_scale) =
            parameters(binder, operands.iter().map(|operand| operand.weight), settings)?;
        for operand in operands {
            let layout = binder.weight(operand.weight)?;
            let elements = binder.real_elements(layout);
            let real = |slot| binder.elements::<f32>(slot, elements);
            let master = real(operand.master)?;
            let kept: Vec<Region> = operand.kept.iter().map(|slot| real(*slot)).collect::<Result<_, _>>()?;
            looked_at.push((master, via.largest(layout.format)));
            looked_at.extend(kept.iter().map(|list| (*list, weights.state.largest_moment())));
            let rows = layout.shard.rows_of(binder.binding.rank);
            states.push(BoundState {
                weight: UpdatedWeight {
                    id: operand.weight,
                    name: layout.name.clone(),
                    shape: layout.shard.shape,
                    placement: layout.placement,
                    first_row: rows.begin,
                    rows: rows.rows,
                    columns: layout.shard.shape.cols,
                },
                master,
                kept,
                main_grad: real(operand.main_grad)?,
                lent: Lent::default(),
            });
        }
        states.sort_unstable_by_key(|state: &BoundState| state.weight.id);
        let vote = binder.elements::<Vote>(vote, 1)?;
        let name = match &states[..] {
            [] => format!("update of {bucket}"),
            [only] => format!("update of `{}`", only.weight.name),
            [first, others @ ..] => {
                format!("update of `{}` and {} more weights", first.weight.name, others.len())
            }
        };
        let update = BoundUpdate {
            program: binder.binding.program.to_owned(),
            name,
            states,
            vote,
            learning_rate: binder.elements::<f32>(learning_rate, 1)?,
            learning_rate_scale,
            weight_decay,
        };
        Ok(Self { update: Arc::new(update), vote, looked_at })
    }
}
