//! The optimizer on a rank's slices: one multi-tensor launch per bucket and parameter group.
//!
//! Law: only real rows are touched. Hyperparameters, step count and clip factor are regions, read when the
//! launch runs and never when it is made, so a captured launch sees the values of its step. Of how large masters
//! and moments may become, all backends get here. What is cast with the update goes where [`super::PartialCast`] and
//! [`super::FusedScale`] would put it.

use super::Refusal;
use super::binder::Binder;
use super::quantize::{PartialAmax, real_planes, real_shape};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{Format, Orientation, Shape, Via};
use warpweft_plan::layout::{OptimizerSettings, PlaneRegions, Region};
use warpweft_plan::op::{self, AdamOperand, AmaxesOperand, MasterOperand, ShardOperand, Vote};
use warpweft_plan::policy::Moments;

/// Adam over the weights of one bucket.
#[derive(Debug)]
pub struct Adam {
    pub settings: OptimizerSettings,
    pub moments: Moments,
    /// The largest magnitudes from which training goes on.
    pub largest: Largest,
    pub states: Vec<State>,
    /// Of the new masters, of all states in their order.
    pub amaxes: Option<PartialAmax>,
    pub vote: Region,
}

/// The largest magnitudes from which training goes on: finite as they are kept and, of a master, as it is cast.
#[derive(Clone, Copy, Debug)]
pub struct Largest {
    pub master: f32,
    pub moment: f32,
}

#[derive(Debug)]
pub enum Master {
    Whole(Region),
    /// f32, and what it is cast to.
    Cast(Region, Cast),
    Split {
        shard: Region,
        remainder: Region,
    },
}

#[derive(Debug)]
pub struct State {
    pub master: Master,
    pub exp_avg: Region,
    pub exp_avg_sq: Region,
    pub main_grad: Region,
    pub hyperparameters: Region,
}

/// The cast of the master that an update makes.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    pub format: Format,
    pub via: Via,
    pub shape: Shape,
    /// The rowwise planes.
    pub planes: PlaneRegions,
    /// One f32; absent for a format without scales.
    pub tensor_scale: Option<Region>,
}

impl Cast {
    fn resolve(
        binder: &Binder<'_>,
        via: Via,
        operand: &AdamOperand,
        slot: SlotId,
        scales: Option<SlotId>,
    ) -> Result<Self, Refusal> {
        let AdamOperand { weight, .. } = *operand;
        let layout = binder.weight(weight)?;
        let members = binder.bucket(layout.bucket)?;
        let format = layout.format;
        if !format.casts_by_blocks() || members.has_scales() != scales.is_some() {
            return Err(format!("no update casts `{}` to {format} so", layout.name));
        }
        let value = |slot| {
            let all = binder.elements::<f32>(slot, members.weights.len())?;
            let own = all.part(layout.position * size_of::<f32>(), size_of::<f32>());
            own.ok_or_else(|| format!("`{}` has no tensor scale", layout.name))
        };
        Ok(Self {
            format,
            via,
            shape: real_shape(binder, weight)?,
            planes: real_planes(binder, &ShardOperand { weight, orientation: Orientation::Rowwise, slot })?,
            tensor_scale: scales.map(value).transpose()?,
        })
    }
}

impl Adam {
    pub fn resolve(
        binder: &Binder<'_>,
        (settings, via): (OptimizerSettings, Via),
        op: &op::Adam,
    ) -> Result<Self, Refusal> {
        let op::Adam { bucket, states: operands, vote, hyperparameters, tensor_scale, amaxes } = op;
        let weights = binder.binding.weights;
        let mut states = Vec::new();
        let mut largest = Largest { master: f32::MAX, moment: weights.state.largest_moment() };
        for operand in operands {
            let layout = binder.weight(operand.weight)?;
            largest.master = largest.master.min(via.largest(layout.format));
            let elements = binder.real_elements(layout);
            let real = |slot| binder.elements::<f32>(slot, elements);
            let moment = |slot| binder.bytes(slot, elements.saturating_mul(weights.state.moment_bytes()));
            let master = match operand.master {
                MasterOperand::Whole(master) => Master::Whole(real(master)?),
                MasterOperand::Cast { master, shard } => {
                    let cast = Cast::resolve(binder, via, operand, shard, *tensor_scale)?;
                    Master::Cast(real(master)?, cast)
                }
                MasterOperand::Split { shard, remainder } => Master::Split {
                    shard: binder.elements::<u16>(shard, elements)?,
                    remainder: binder.elements::<i16>(remainder, elements)?,
                },
            };
            states.push(State {
                master,
                exp_avg: moment(operand.exp_avg)?,
                exp_avg_sq: moment(operand.exp_avg_sq)?,
                main_grad: real(operand.main_grad)?,
                hyperparameters: binder.hyperparameters(*hyperparameters, operand.weight)?,
            });
        }
        let amaxes = amaxes.map(|AmaxesOperand { block_amax, tensor_amax }| {
            let whole = operands.iter().zip(&binder.bucket(*bucket)?.weights);
            let master = |(operand, weight): (&AdamOperand, &WeightId)| match operand.master {
                MasterOperand::Whole(master) if operand.weight == *weight => Ok(master),
                _ => Err(format!("{weight} is not updated in its place, so its amax has none")),
            };
            let masters = whole.map(master).collect::<Result<Vec<_>, _>>()?;
            PartialAmax::resolve(binder, *bucket, &masters, block_amax, tensor_amax, None)
        });
        let vote = binder.elements::<Vote>(*vote, 1)?;
        let (moments, amaxes) = (weights.state.moments, amaxes.transpose()?);
        Ok(Self { settings, moments, largest, states, amaxes, vote })
    }
}
