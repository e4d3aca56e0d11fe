//! AdamW as a custom optimizer, on the CPU.

use warpweft_backend::cpu::CpuSurface;
use warpweft_plan::compute::{ComputeError, UpdateContext};
use warpweft_plan::model::Hyperparameters;

/// By squaring, as Adam's bias correction is defined.
fn power(base: f64, exponent: u32) -> f64 {
    let squares = std::iter::successors(Some(base), |square| Some(square * square));
    let bits = squares.take(32).enumerate().filter(|(bit, _)| exponent >> bit & 1 == 1);
    bits.fold(1.0, |product, (_, square)| product * square)
}

/// AdamW by the step's hyperparameters, in the order of operations that it is specified in; by what came back of a
/// matrix, where one was made whole.
pub fn adamw(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let vote = context.vote()?[0];
    for weight in context.weights() {
        let Hyperparameters { learning_rate, weight_decay, beta1, beta2 } =
            context.hyperparameters(weight.id)?[0];
        let corrections = [beta1, beta2].map(|beta| (1.0 - power(f64::from(beta), vote.step)) as f32);
        let mut master = context.master(weight.id)?;
        let gradient = match weight.whole_matrix {
            true => context.transformed(weight.id)?,
            false => context.main_grad(weight.id)?,
        };
        let (mut first, mut second) =
            (context.state(weight.id, "first")?, context.state(weight.id, "second")?);
        assert_eq!(master.len(), weight.rows * weight.columns);
        for at in 0..master.len() {
            let g = vote.factor() * gradient[at];
            first[at] = beta1 * first[at] + (1.0 - beta1) * g;
            second[at] = beta2 * second[at] + ((1.0 - beta2) * g) * g;
            let root = (second[at] / corrections[1]).sqrt() + 1e-8;
            let update = (first[at] / corrections[0]) / root + weight_decay * master[at];
            master[at] -= learning_rate * update;
        }
    }
    Ok(())
}
