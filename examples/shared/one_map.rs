//! One weight, a call that computes loss and gradient, and what there is to learn.

use warpweft::prelude::*;

pub(crate) const SIZE: usize = 32;

/// A training step, or an evaluation of the same call.
pub(crate) fn declare(model: &Model, weight: WeightId, trains: bool) -> Result<StepProgram, DeclareError> {
    let mut program = StepProgram::builder(if trains { "train" } else { "evaluate" }, model);
    let input = program.input("input", SIZE, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", if trains { Phase::Backward } else { Phase::Forward });
    let call = call.uses_dense(weight).reads(input).writes(loss);
    if trains {
        call.gradient(weight).add()?;
        return program.build_training();
    }
    call.add()?;
    program.build_evaluation()
}

/// The map to learn is y = 0.5 x, seen through `noise`.
pub(crate) fn fit(
    noise: f32,
    call: &Call,
    context: &ComputeContext<'_, CpuSurface>,
) -> Result<(), ComputeError> {
    let w = context.dense_named("map")?;
    let x = context.read_named::<f32>("input")?;
    let mut gradient = if call.gradients.is_empty() { None } else { Some(context.gradient_named("map")?) };
    let mut sum = 0.0;
    for row in 0..SIZE {
        let y: f32 = (0..SIZE).map(|col| w[row * SIZE + col] * x[col]).sum();
        let noise = if gradient.is_some() { noise * (97.0 * x[row]).sin() } else { 0.0 };
        let error = y - 0.5 * x[row] - noise;
        sum += error * error;
        if let Some(gradient) = &mut gradient {
            (0..SIZE).for_each(|col| gradient[row * SIZE + col] = 2.0 * error * x[col]);
        }
    }
    context.write_named::<f32>("loss")?[0] = sum;
    Ok(())
}

/// Writes what two ranks get in a step.
pub(crate) fn feed(session: &mut Session, program: &str, step: usize) -> Result<(), SessionError> {
    (0..2).try_for_each(|rank| {
        let x: [f32; SIZE] = std::array::from_fn(|at| ((step * 7 + rank * 13 + at * 5) as f32).sin());
        session.write_input(program, RankId::at(rank), "input", &x)
    })
}
