//! Two matrices and a bias, and what there is to learn.

use ndarray::{ArrayView2, Axis};
use warpweft::prelude::*;
use warpweft::session::SessionBuilder;

use crate::println;

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const BATCH: usize = 32;

/// Two matrices and a bias; a batch in, its loss out.
pub(crate) fn declare(config: &Config, ranks: usize) -> Result<StepProgram, Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    let up = model.sharded("up", HIDDEN, WIDTH, Format::NVFP4_2D)?;
    let down = model.sharded("down", WIDTH, HIDDEN, Format::NVFP4_2D)?;
    let bias = model.replicated("bias", 1, HIDDEN)?;
    let model = config.apply_weight_rules(&model.build())?;
    let mut program = StepProgram::builder("train", &model);
    let x = program.input("x", BATCH / ranks * WIDTH, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let mut call = program.call("fit", Phase::Backward);
    for weight in [up, down, bias] {
        call = call.uses_dense(weight).gradient(weight);
    }
    call.reads(x).writes(loss).add()?;
    Ok(program.build_training()?)
}

/// What is to be learned: every element of a sample is to be that of the sample read backwards, bent.
/// Loss ½|down · relu(up · x + bias) − wanted|² and its gradients, means over the rank's samples.
pub(crate) fn fit(context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let x = context.read_named::<f32>("x")?;
    let samples = x.len() / WIDTH;
    let view = |values, shape| ArrayView2::from_shape(shape, values).map_err(ComputeError::closure);
    let (u, d, b) = (context.dense_named("up")?, context.dense_named("down")?, context.dense_named("bias")?);
    let (u, d) = (view(&u, (HIDDEN, WIDTH))?, view(&d, (WIDTH, HIDDEN))?);
    let (b, x) = (view(&b, (1, HIDDEN))?, view(&x, (samples, WIDTH))?);
    let hidden = (x.dot(&u.t()) + b).mapv(|value| value.max(0.0));
    let mut error = hidden.dot(&d.t());
    for (mut errors, sample) in error.rows_mut().into_iter().zip(x.rows()) {
        errors.iter_mut().zip(sample.iter().rev()).for_each(|(error, value)| *error -= value.tanh());
    }
    let loss = error.iter().map(|value| 0.5 * value * value).sum::<f32>() / samples as f32;
    error /= samples as f32;
    let mut back = error.dot(&d);
    back.zip_mut_with(&hidden, |slope, value| *slope *= f32::from(*value > 0.0));
    let write = |weight, values: ndarray::ArrayView2<'_, f32>| -> Result<(), ComputeError> {
        context.gradient_named(weight)?.iter_mut().zip(&values).for_each(|(to, value)| *to = *value);
        Ok(())
    };
    write("down", error.t().dot(&hidden).view())?;
    write("up", back.t().dot(&x).view())?;
    write("bias", back.sum_axis(Axis(0)).insert_axis(Axis(0)).view())?;
    context.write_named::<f32>("loss")?[0] = loss;
    Ok(())
}

/// Trains at a rate that falls to 0, and returns the last loss.
pub(crate) async fn train(
    builder: SessionBuilder<CpuSurface>,
    ranks: usize,
) -> Result<f32, Box<dyn std::error::Error>> {
    const STEPS: usize = 120;
    let mut session = builder.initialize(initial::normal(1, 0.1)).start_cpu(ranks as u32).await?;
    let mut loss = 0.0;
    for step in 0..STEPS {
        session.set_learning_rate(0.02 * (1.0 - step as f32 / STEPS as f32))?;
        let seed = |at: usize| ((step * BATCH * WIDTH + at) as f32 * 12.9898).sin() * 43758.547;
        let batch: Vec<f32> = (0..BATCH * WIDTH).map(|at| 2.0 * seed(at).rem_euclid(1.0) - 1.0).collect();
        for (rank, part) in batch.chunks_exact(batch.len() / ranks).enumerate() {
            session.write_input("train", RankId::at(rank), "x", part)?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        loss = report.mean_output("loss")?;
        if step % 40 == 0 || step + 1 == STEPS {
            println!("ranks {ranks}, step {step:3}  loss {loss:.5}");
        }
    }
    session.close().await?;
    Ok(loss)
}
