//! Rules that random programs are trained by where Adam does not: one for each number of lists that are kept.
//!
//! Law: a rule takes everything that differs between steps, weights and parameter groups from its context, and
//! rounds every operation in f32, in the order in which [`crate::reference`] does the same on whole weights; they
//! share no code. Two lists are AdamW's moments, one is a momentum, and without any it is plain descent.

use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::{ComputeError, UpdateContext};

/// Updates the weights of one task; `lists` are kept beside each, or Adam would have had to update them.
pub(crate) fn run(lists: Option<u8>, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    match lists {
        Some(0) => descent(context),
        Some(1) => momentum(context),
        Some(2) => adam_w(context),
        other => Err(ComputeError::closure(format!("{other:?} lists are for no rule"))),
    }
}

/// The factor on gradients, the rate of these weights, and their decay.
fn scalars(context: &UpdateContext<'_, CpuSurface>) -> Result<[f32; 3], ComputeError> {
    let rate = context.learning_rate()?[0] * context.learning_rate_scale();
    Ok([context.vote()?[0].factor(), rate, context.weight_decay()])
}

fn descent(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [factor, rate, decay] = scalars(context)?;
    for weight in context.weights() {
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        for (p, g) in master.iter_mut().zip(gradient.iter()) {
            *p -= rate * (g * factor + decay * *p);
        }
    }
    Ok(())
}

fn momentum(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [factor, rate, decay] = scalars(context)?;
    for weight in context.weights() {
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut kept = context.first_state(weight.id)?;
        for ((p, m), g) in master.iter_mut().zip(kept.iter_mut()).zip(gradient.iter()) {
            *m = 0.9 * *m + g * factor;
            *p -= rate * (*m + decay * *p);
        }
    }
    Ok(())
}

fn adam_w(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [factor, rate, decay] = scalars(context)?;
    let (beta1, beta2, epsilon) = (0.9f32, 0.999f32, 1e-8f32);
    let step = context.vote()?[0].step as i32;
    let [correction1, correction2] = [beta1, beta2].map(|beta| (1.0 - f64::from(beta).powi(step)) as f32);
    for weight in context.weights() {
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let (mut first, mut second) = (context.first_state(weight.id)?, context.second_state(weight.id)?);
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
