//! Custom optimizers of random programs: one for each number of states.
//!
//! Law: [`Closures`] are what machine and sessions carry a program out with; weights whose matrices are whole are for
//! [`super::whole_matrix_optimizer`]. A rule takes everything that differs between steps, weights and parameter groups
//! from its context, and rounds every operation in f32, in the order in which [`super::reference`] does the same on
//! whole weights; they share no code. Two lists are AdamW's moments, one is a momentum, and without any it is plain
//! descent.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::WeightId;
use warpweft_plan::compute::{
    Compute, ComputeContext, ComputeError, Optimizer, PrepareContext, TransformContext, UpdateContext,
};
use warpweft_plan::model::{Call, StepProgram};
use warpweft_testing::custom_optimizer::states;
use warpweft_testing::random_programs::Sample;

use super::{closure, whole_matrix_optimizer};

/// The calls of a program, and the custom optimizer if there is one.
pub(crate) struct Closures {
    program: StepProgram,
    lists: Option<u8>,
}

impl Closures {
    pub(crate) fn of(sample: &Sample) -> Self {
        Self { program: sample.program.clone(), lists: sample.config.optimizer.custom_states }
    }

    fn lists(&self) -> Result<u8, ComputeError> {
        self.lists.ok_or(ComputeError::NoOptimizer)
    }
}

impl Compute<CpuSurface> for Closures {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        closure::run(&self.program, call, context)
    }

    fn optimizer(&mut self) -> Option<&mut dyn Optimizer<CpuSurface>> {
        self.lists.is_some().then_some(self)
    }
}

impl Optimizer<CpuSurface> for Closures {
    fn name(&self) -> &'static str {
        "of a random program"
    }

    fn states(&self) -> &'static [&'static str] {
        states(self.lists.map_or(0, usize::from))
    }

    fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let lists = self.lists()?;
        if context.weights().any(|weight| weight.whole_matrix) {
            return whole_matrix_optimizer::update(lists, context);
        }
        match lists {
            0 => descent(context),
            1 => momentum(context),
            2 => adam_w(context),
            other => Err(ComputeError::closure(format!("{other} lists are for no rule"))),
        }
    }

    fn prepare(&mut self, context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        whole_matrix_optimizer::prepare(self.lists()?, context)
    }

    fn transform(&mut self, context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        whole_matrix_optimizer::transform(context)
    }

    fn takes_whole_matrices(&self) -> bool {
        self.program.model().weights().iter().any(|spec| spec.parameters.whole_matrix)
    }
}

/// The factor on gradients, the rate of a weight, and its decay.
pub(crate) fn scalars(
    context: &UpdateContext<'_, CpuSurface>,
    weight: WeightId,
) -> Result<[f32; 3], ComputeError> {
    let by = context.hyperparameters(weight)?[0];
    Ok([context.vote()?[0].factor(), by.learning_rate, by.weight_decay])
}

fn descent(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    for weight in context.weights() {
        let [factor, rate, decay] = scalars(context, weight.id)?;
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        for (p, g) in master.iter_mut().zip(gradient.iter()) {
            *p -= rate * (g * factor + decay * *p);
        }
    }
    Ok(())
}

fn momentum(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    for weight in context.weights() {
        let [factor, rate, decay] = scalars(context, weight.id)?;
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut kept = context.state(weight.id, "first")?;
        for ((p, m), g) in master.iter_mut().zip(kept.iter_mut()).zip(gradient.iter()) {
            *m = 0.9 * *m + g * factor;
            *p -= rate * (*m + decay * *p);
        }
    }
    Ok(())
}

fn adam_w(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let (beta1, beta2, epsilon) = (0.9f32, 0.999f32, 1e-8f32);
    let step = context.vote()?[0].step as i32;
    let [correction1, correction2] = [beta1, beta2].map(|beta| (1.0 - f64::from(beta).powi(step)) as f32);
    for weight in context.weights() {
        let [factor, rate, decay] = scalars(context, weight.id)?;
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let (mut first, mut second) =
            (context.state(weight.id, "first")?, context.state(weight.id, "second")?);
        let moments = first.iter_mut().zip(second.iter_mut());
        for ((p, (m, v)), g) in master.iter_mut().zip(moments).zip(gradient.iter()) {
            let g = g * factor;
            *m = beta1 * *m + (1.0 - beta1) * g;
            *v = beta2 * *v + ((1.0 - beta2) * g) * g;
            let update = (*m / correction1) / ((*v / correction2).sqrt() + epsilon);
            *p -= rate * (update + decay * *p);
        }
    }
    Ok(())
}
