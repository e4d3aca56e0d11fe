//! The optimizer on a rank's slices: one multi-tensor launch per bucket.
//!
//! Law: only real rows are touched. A vote that skips leaves everything as it is. Learning rate, step count and
//! clip factor are read from the arena when the launch runs, never when it is bound, so a recorded
//! launch sees the values of its step. The numbers are those of [`super::adam`].

use half::bf16;

use super::adam::{AdamStep, Moment};
use super::bind::{Binder, Refusal};
use super::memory::{Arena, BorrowError};
use super::ops::OpError;
use crate::config::Moments;
use crate::id::SlotId;
use crate::layout::{OptimizerSettings, Region};
use crate::op::{AdamOperand, MasterOperand, Vote};

/// Adam over the weights of one bucket.
#[derive(Debug)]
pub(super) struct Adam {
    settings: OptimizerSettings,
    moments: Moments,
    states: Vec<State>,
    vote: Region,
    learning_rate: Region,
}

#[derive(Debug)]
enum Master {
    Whole(Region),
    Split { shard: Region, remainder: Region },
}

#[derive(Debug)]
struct State {
    master: Master,
    exp_avg: Region,
    exp_avg_sq: Region,
    main_grad: Region,
}

impl Adam {
    pub(super) fn bind(
        binder: &Binder<'_>,
        settings: OptimizerSettings,
        operands: &[AdamOperand],
        vote: SlotId,
        learning_rate: SlotId,
    ) -> Result<Self, Refusal> {
        let weights = binder.binding.weights;
        let mut states = Vec::new();
        for operand in operands {
            let elements = binder.real_elements(binder.weight(operand.weight)?);
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
            });
        }
        let (vote, learning_rate) =
            (binder.elements::<Vote>(vote, 1)?, binder.elements::<f32>(learning_rate, 1)?);
        Ok(Self { settings, moments: weights.state.moments, states, vote, learning_rate })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let vote = arena.read::<Vote>(self.vote)?.first().copied().unwrap_or_default();
        if vote.skips() {
            return Ok(());
        }
        let learning_rate = arena.read::<f32>(self.learning_rate)?.first().copied().unwrap_or(0.0);
        let step = AdamStep::new(&self.settings, vote.step, vote.clip * vote.unscale, learning_rate);
        for state in &self.states {
            match self.moments {
                Moments::F32 => state.update::<f32>(arena, &step)?,
                Moments::Bf16 => state.update::<bf16>(arena, &step)?,
            }
        }
        Ok(())
    }
}

impl State {
    fn update<M: Moment>(&self, arena: &Arena, step: &AdamStep) -> Result<(), BorrowError> {
        let mut exp_avg = arena.write::<M>(self.exp_avg)?;
        let mut exp_avg_sq = arena.write::<M>(self.exp_avg_sq)?;
        let gradient = arena.read::<f32>(self.main_grad)?;
        match self.master {
            Master::Whole(master) => {
                let mut master = arena.write::<f32>(master)?;
                step.update(master.iter_mut(), &mut exp_avg, &mut exp_avg_sq, &gradient);
            }
            Master::Split { shard, remainder } => {
                let mut shard = arena.write::<u16>(shard)?;
                let mut remainder = arena.write::<i16>(remainder)?;
                let halves = shard.iter_mut().zip(remainder.iter_mut());
                step.update(halves, &mut exp_avg, &mut exp_avg_sq, &gradient);
            }
        }
        Ok(())
    }
}
