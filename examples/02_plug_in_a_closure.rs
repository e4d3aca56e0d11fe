//! Trains one weight to reproduce a fixed linear map, on two ranks of this machine.
//!
//! `cargo run --example 02_plug_in_a_closure`
//!
//! The closure reads what its call declared and writes what it declared, nothing else. The weight
//! travels as NVFP4; the FP32 master it is quantized from is what learns.

#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;

use print::println;

const SIZE: usize = 32;

/// One weight, one call that computes loss and gradient at once.
fn declare() -> Result<StepProgram, DeclareError> {
    let mut model = Model::builder();
    let weight = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let input = program.input("input", SIZE, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    program
        .call("fit", Phase::Backward)
        .uses_dense(weight)
        .gradient(weight)
        .reads(input)
        .writes(loss)
        .add()?;
    program.build_training()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The map to learn is y = 0.5 x, so the weight should become half the identity.
    let fit = on_cpu(|_, context| {
        let w = context.dense_named("map")?;
        let x = context.read_named::<f32>("input")?;
        let mut gradient = context.gradient_named("map")?;
        let mut error_squared = 0.0;
        for row in 0..SIZE {
            let y: f32 = (0..SIZE).map(|col| w[row * SIZE + col] * x[col]).sum();
            let error = y - 0.5 * x[row];
            error_squared += error * error;
            for col in 0..SIZE {
                gradient[row * SIZE + col] = 2.0 * error * x[col];
            }
        }
        context.write_named::<f32>("loss")?[0] = error_squared;
        Ok(())
    });

    let builder = Session::builder(Config::default(), move |_| fit).program(declare()?);
    let mut session = builder.initialize(initial::zeros()).start_cpu(2).await?;
    for step in 0..200 {
        // It decays to 0: with a rate that stays, Adam would keep walking around the solution.
        session.set_learning_rate(0.01 * (1.0 - step as f32 / 200.0))?;
        for rank in 0..2 {
            let phase = |at: usize| ((step * 7 + rank * 13 + at * 5) as f32).sin();
            let x: Vec<f32> = (0..SIZE).map(phase).collect();
            session.write_input("train", RankId::new(rank as u32), "input", &x)?;
        }
        let report = session.step("train").await?;
        if step % 40 == 0 || step == 199 {
            println!(
                "step {step:3}  loss {:.5}  {:?}  {} bytes in per rank",
                report.mean_output("loss")?,
                report.outcome,
                report.bounds.wire_bytes
            );
        }
    }
    session.close().await?;
    Ok(())
}
