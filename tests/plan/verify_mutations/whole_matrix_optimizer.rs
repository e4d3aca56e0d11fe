//! Whole-matrix optimizers of random programs: one for each number of states.
//!
//! Law: what becomes of a matrix depends on each of its elements, on where it is, and on which weight it is of; of a
//! row it depends on the rank's own elements alone. Every list is read and changed when rows are prepared and when they
//! are updated, and gradients are read both times.
//! Rounding is as in [`super::custom_optimizer`], the same in [`super::parameter`], with which this shares no code.

use warpweft_backend::cpu::CpuSurface;
use warpweft_plan::compute::{ComputeError, PrepareContext, TransformContext, UpdateContext};

use super::custom_optimizer::scalars;

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;

fn correction(beta: f32, step: u32) -> f32 {
    (1.0 - f64::from(beta).powi(step as i32)) as f32
}

/// The gradient, its momentum, or both its moments.
pub(crate) fn prepare(lists: u8, context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let vote = context.vote()?[0];
    let factor = vote.factor();
    for weight in context.weights() {
        let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
        rows.iter_mut().zip(gradient.iter()).for_each(|(row, g)| *row = g * factor);
        if lists == 1 {
            for (row, m) in rows.iter_mut().zip(context.state(weight.id, "first")?.iter_mut()) {
                *m = 0.9 * *m + *row;
                *row = *m;
            }
        }
        if lists == 2 {
            let (mut first, mut second) =
                (context.state(weight.id, "first")?, context.state(weight.id, "second")?);
            for ((row, m), v) in rows.iter_mut().zip(first.iter_mut()).zip(second.iter_mut()) {
                *m = BETA1 * *m + (1.0 - BETA1) * *row;
                *v = BETA2 * *v + ((1.0 - BETA2) * *row) * *row;
                *row = *m / correction(BETA1, vote.step) + *v;
            }
        }
    }
    Ok(())
}

/// The matrix over its norm, as often as its weight's number says, with its mirror image.
pub(crate) fn transform(context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let (weight, matrix, mut to) = (context.weight(), context.matrix()?, context.transformed()?);
    let norm = matrix.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    let often = 1.0 + weight.id.index() as f32;
    for row in 0..weight.rows {
        for column in 0..weight.columns {
            let at = |row: usize| matrix[row * weight.columns + column];
            to[row * weight.columns + column] = (often * at(row) + at(weight.rows - 1 - row)) / norm;
        }
    }
    Ok(())
}

/// Descent by what came back and a little of the gradient, which goes into the lists again; with two of them over the
/// second one's root.
pub(crate) fn update(lists: u8, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let corrected = correction(BETA2, context.vote()?[0].step);
    for weight in context.weights() {
        let [factor, rate, decay] = scalars(context, weight.id)?;
        let (transformed, gradient) = (context.transformed(weight.id)?, context.main_grad(weight.id)?);
        let mut by: Vec<f32> =
            transformed.iter().zip(gradient.iter()).map(|(t, g)| t + 0.01 * (g * factor)).collect();
        if lists > 0 {
            let mut first = context.state(weight.id, "first")?;
            first.iter_mut().zip(&by).for_each(|(m, by)| *m += 0.1 * by);
        }
        if lists == 2 {
            for (v, by) in context.state(weight.id, "second")?.iter_mut().zip(&mut by) {
                *v = BETA2 * *v + ((1.0 - BETA2) * *by) * *by;
                *by /= (*v / corrected).sqrt() + 1e-8;
            }
        }
        for (p, by) in context.master(weight.id)?.iter_mut().zip(by) {
            *p -= rate * (by + decay * *p);
        }
    }
    Ok(())
}
