//! Two programs over one set of weights: training steps, and evaluations between them.
//!
//! `cargo run --example 06_evaluate_beside_training`
//!
//! Programs have calls, buffers and shapes of their own (here the evaluation takes four times the
//! batch) and share weights, arena and ranks. An evaluation sees the weights exactly as the next
//! training step will, quantized, and leaves them alone. One closure serves both programs, because it
//! asks its context for buffers by name.

#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;

use print::println;

const SIZE: usize = 32;

/// A program that fits y = −x on `batch` vectors; with a gradient if it trains.
fn declare(model: &Model, weight: WeightId, batch: usize, trains: bool) -> Result<StepProgram, DeclareError> {
    let mut program = StepProgram::builder(if trains { "train" } else { "evaluate" }, model);
    let input = program.input("input", batch * SIZE, ElementType::F32)?;
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

fn fit(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    // Names, because ids of buffers are each program's own.
    let w = context.dense_named("map")?;
    let inputs = context.read_named::<f32>("input")?;
    let mut gradient = if call.gradients.is_empty() { None } else { Some(context.gradient_named("map")?) };
    if let Some(gradient) = &mut gradient {
        gradient.fill(0.0);
    }
    let (mut sum, batch) = (0.0, inputs.len() / SIZE);
    for x in inputs.chunks_exact(SIZE) {
        for row in 0..SIZE {
            let y: f32 = w[row * SIZE..(row + 1) * SIZE].iter().zip(x).map(|(w, x)| w * x).sum();
            let error = y + x[row];
            sum += error * error / batch as f32;
            if let Some(gradient) = &mut gradient {
                let row = &mut gradient[row * SIZE..(row + 1) * SIZE];
                row.iter_mut().zip(x).for_each(|(gradient, x)| *gradient += 2.0 * error * x / batch as f32);
            }
        }
    }
    context.write_named::<f32>("loss")?[0] = sum;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    let weight = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
    let model = model.build();
    let (small, large) = (8, 32);

    let mut config = Config::default();
    config.optimizer.lr = 0.02;
    let mut session = Session::builder(config, |_| fit)
        .program(declare(&model, weight, small, true)?)
        .program(declare(&model, weight, large, false)?)
        .initialize(initial::zeros())
        .start_cpu(2)
        .await?;

    let inputs = |batch: usize, seed: usize| -> Vec<f32> {
        (0..batch * SIZE).map(|at| ((at * 7919 + seed * 104_729) as f32 * 0.618).sin()).collect()
    };
    for step in 0..120 {
        for rank in 0..2 {
            let own = RankId::new(rank);
            session.write_input("train", own, "input", &inputs(small, 2 * step + rank as usize))?;
            session.write_input("evaluate", own, "input", &inputs(large, 900_000 + rank as usize))?;
        }
        if step % 30 == 0 {
            let report = session.step("evaluate").await?;
            assert_eq!(report.outcome, Outcome::Evaluated);
            println!("before step {step:3}: evaluation loss {:.4}", report.mean_output("loss")?);
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
    }
    println!("after all:       evaluation loss {:.4}", session.step("evaluate").await?.mean_output("loss")?);
    session.close().await?;
    Ok(())
}
