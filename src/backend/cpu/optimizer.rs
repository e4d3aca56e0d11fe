//! AdamW on a rank's master slices.
//!
//! Laws:
//! - Every value is rounded op by op in f32, in the order written, without fused multiply-add, so
//!   results are the same on every machine. `β1^t` and `β2^t` are raised in f64 from the f32 β.
//! - Weight decay is decoupled: it uses the old master and is multiplied by the learning rate.
//! - Only real rows are touched. A vote that skips leaves everything as it is.

use super::bind::{Binder, Refusal};
use super::memory::Arena;
use super::ops::OpError;
use crate::id::SlotId;
use crate::layout::{OptimizerSettings, Region};
use crate::op::{AdamOperand, Vote};

/// AdamW over the weights of one bucket.
#[derive(Debug)]
pub(super) struct Adam {
    settings: OptimizerSettings,
    states: Vec<State>,
    vote: Region,
    learning_rate: Region,
}

#[derive(Debug)]
struct State {
    master: Region,
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
        let mut states = Vec::new();
        for operand in operands {
            let elements = binder.real_elements(binder.weight(operand.weight)?);
            let real = |slot| binder.elements::<f32>(slot, elements);
            states.push(State {
                master: real(operand.master)?,
                exp_avg: real(operand.exp_avg)?,
                exp_avg_sq: real(operand.exp_avg_sq)?,
                main_grad: real(operand.main_grad)?,
            });
        }
        let (vote, learning_rate) =
            (binder.elements::<Vote>(vote, 1)?, binder.elements::<f32>(learning_rate, 1)?);
        Ok(Self { settings, states, vote, learning_rate })
    }

    pub(super) fn run(&self, arena: &Arena) -> Result<(), OpError> {
        let vote = arena.read::<Vote>(self.vote)?.first().copied().unwrap_or_default();
        if vote.skips() {
            return Ok(());
        }
        let learning_rate = arena.read::<f32>(self.learning_rate)?.first().copied().unwrap_or(0.0);
        let step = AdamW::new(&self.settings, vote.step, vote.clip, learning_rate);
        for state in &self.states {
            step.update(
                &mut arena.write(state.master)?,
                &mut arena.write(state.exp_avg)?,
                &mut arena.write(state.exp_avg_sq)?,
                &arena.read(state.main_grad)?,
            );
        }
        Ok(())
    }
}

/// The scalars of one optimizer step.
#[derive(Clone, Copy, Debug)]
struct AdamW {
    beta1: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// `1 − β1^t`.
    correction1: f32,
    /// `1 − β2^t`.
    correction2: f32,
    epsilon: f32,
    weight_decay: f32,
    clip: f32,
    learning_rate: f32,
}

impl AdamW {
    /// Step `step`, counted from 1; every gradient is multiplied by `clip` first.
    fn new(settings: &OptimizerSettings, step: u32, clip: f32, learning_rate: f32) -> Self {
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(f64::from(step))) as f32;
        Self {
            beta1: settings.beta1,
            one_minus_beta1: 1.0 - settings.beta1,
            beta2: settings.beta2,
            one_minus_beta2: 1.0 - settings.beta2,
            correction1: correction(settings.beta1),
            correction2: correction(settings.beta2),
            epsilon: settings.epsilon,
            weight_decay: settings.weight_decay,
            clip,
            learning_rate,
        }
    }

    /// Updates masters and moments; all four slices are equally long.
    ///
    /// ```text
    /// m = β1·m + (1−β1)·g          v = β2·v + ((1−β2)·g)·g
    /// u = (m/c1) / (√(v/c2) + ε) + λ·p        p = p − lr·u
    /// ```
    fn update(&self, master: &mut [f32], exp_avg: &mut [f32], exp_avg_sq: &mut [f32], gradient: &[f32]) {
        let moments = exp_avg.iter_mut().zip(exp_avg_sq);
        for ((p, (m, v)), gradient) in master.iter_mut().zip(moments).zip(gradient) {
            let g = gradient * self.clip;
            *m = self.beta1 * *m + self.one_minus_beta1 * g;
            *v = self.beta2 * *v + (self.one_minus_beta2 * g) * g;
            let u = (*m / self.correction1) / ((*v / self.correction2).sqrt() + self.epsilon);
            *p -= self.learning_rate * (u + self.weight_decay * *p);
        }
    }
}
