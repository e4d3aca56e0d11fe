//! Custom optimizers of the oracle: Lion, and momentum that orthogonalizes each matrix.

use warpweft::compute::{PrepareContext, TransformContext};
use warpweft::prelude::*;

/// What the lists of state keep of the step before.
const KEEPS: f32 = 0.95;

/// Lion (Chen et al., 2023), with one list of state.
pub(crate) fn lion(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    const BLENDS: f32 = 0.9;
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let Hyperparameters { learning_rate, weight_decay, .. } = context.hyperparameters(weight.id)?[0];
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut momentum = context.state(weight.id, "first")?;
        for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
            let g = factor * g;
            let blend = BLENDS * *m + (1.0 - BLENDS) * g;
            *m = KEEPS * *m + (1.0 - KEEPS) * g;
            let sign = if blend == 0.0 { 0.0 } else { blend.signum() };
            *p -= learning_rate * (sign + weight_decay * *p);
        }
    }
    Ok(())
}

/// Momentum, which is also what a whole matrix is made of.
pub(crate) fn prepare(context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
        let mut momentum = context.state(weight.id, "first")?;
        for ((row, m), g) in rows.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
            *m = KEEPS * *m + factor * g;
            *row = *m;
        }
    }
    Ok(())
}

/// A matrix divided by its norm.
pub(crate) fn transform(context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let matrix = context.matrix()?;
    let norm = matrix.iter().map(|value| value * value).sum::<f32>().sqrt() + 1e-7;
    let mut found = context.transformed()?;
    found.iter_mut().zip(matrix.iter()).for_each(|(found, value)| *found = value / norm);
    Ok(())
}

/// By what came back of a matrix, and by momentum of everything else.
pub(crate) fn update(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let rate = context.hyperparameters(weight.id)?[0].learning_rate;
        let mut master = context.master(weight.id)?;
        if weight.whole_matrix {
            let rows = context.transformed(weight.id)?;
            master.iter_mut().zip(rows.iter()).for_each(|(p, step)| *p -= 10.0 * rate * step);
        } else {
            let (gradient, mut momentum) =
                (context.main_grad(weight.id)?, context.state(weight.id, "first")?);
            for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
                *m = KEEPS * *m + factor * g;
                *p -= rate * *m;
            }
        }
    }
    Ok(())
}
