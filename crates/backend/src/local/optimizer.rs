//! The optimizer on a rank's slices: one multi-tensor launch per bucket and parameter group.
//!
//! Law: only real rows are touched. Hyperparameters, step count and clip factor are regions, read when the
//! launch runs and never when it is made, so a captured launch sees the values of its step. Of how large masters
//! and moments may become, all backends get here.

use super::Refusal;
use super::binder::Binder;
use warpweft_base::id::SlotId;
use warpweft_format::Via;
use warpweft_plan::layout::{OptimizerSettings, Region};
use warpweft_plan::op::{AdamOperand, MasterOperand, Vote};
use warpweft_plan::policy::Moments;

/// Adam over the weights of one bucket.
#[derive(Debug)]
pub struct Adam {
    pub settings: OptimizerSettings,
    pub moments: Moments,
    /// The largest magnitudes from which training goes on.
    pub largest: Largest,
    pub states: Vec<State>,
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
    Split { shard: Region, remainder: Region },
}

#[derive(Debug)]
pub struct State {
    pub master: Master,
    pub exp_avg: Region,
    pub exp_avg_sq: Region,
    pub main_grad: Region,
    pub hyperparameters: Region,
}

impl Adam {
    pub fn resolve(
        binder: &Binder<'_>,
        (settings, via): (OptimizerSettings, Via),
        operands: &[AdamOperand],
        vote: SlotId,
        hyperparameters: SlotId,
    ) -> Result<Self, Refusal> {
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
                hyperparameters: binder.hyperparameters(hyperparameters, operand.weight)?,
            });
        }
        let vote = binder.elements::<Vote>(vote, 1)?;
        Ok(Self { settings, moments: weights.state.moments, largest, states, vote })
    }
}
