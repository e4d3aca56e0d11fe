//! Trains two small matrices beside a large one that stays what it is, as low-rank adapters (LoRA) do.
//!
//! `cargo run --example 11_adapters_beside_a_frozen_weight`
//!
//! The base is frozen: sharded, in NVFP4 on the wire, gathered like any other weight, and without gradient,
//! main grad and moments. The adapters are replicated, in f32. A configuration can freeze weights too:
//!
//! ```toml
//! [[weights]]
//! match = "base.*"
//! frozen = true
//! ```

#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;

use print::println;

const SIZE: usize = 64;
const RANK: usize = 4;

fn declare() -> Result<StepProgram, DeclareError> {
    let mut model = Model::builder();
    let base = model.sharded("base.map", SIZE, SIZE, Format::NVFP4_2D)?;
    model.freeze(base)?;
    let down = model.replicated("adapter.down", RANK, SIZE)?;
    let up = model.replicated("adapter.up", SIZE, RANK)?;
    let mut program = StepProgram::builder("train", &model.build());
    let input = program.input("input", SIZE, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", Phase::Backward).uses(base, Orientation::Rowwise, Form::Dense);
    let call = call.uses(down, Orientation::Rowwise, Form::Dense).uses(up, Orientation::Rowwise, Form::Dense);
    call.gradient(down).gradient(up).reads(input).writes(loss).add()?;
    program.build_training()
}

/// y = (W + U·D) x is to be W x with every sixteenth row doubled: a change of four rows, so four ranks do.
fn fit(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let [base, down, up] = [call.uses[0].weight, call.uses[1].weight, call.uses[2].weight];
    let (input, loss) = (call.buffers[0].buffer, call.buffers[1].buffer);
    let w = context.dense(base, Orientation::Rowwise)?;
    let (d, u) = (context.dense(down, Orientation::Rowwise)?, context.dense(up, Orientation::Rowwise)?);
    let x = context.read::<f32>(input)?;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let through: Vec<f32> = d.chunks(SIZE).map(|row| dot(row, &x)).collect();
    let error = |row: usize| {
        let wanted = if row.is_multiple_of(SIZE / RANK) { dot(&w[row * SIZE..][..SIZE], &x) } else { 0.0 };
        dot(&u[row * RANK..][..RANK], &through) - wanted
    };
    let errors: Vec<f32> = (0..SIZE).map(error).collect();
    let (mut of_down, mut of_up) = (context.gradient(down)?, context.gradient(up)?);
    for rank in 0..RANK {
        let back: f32 = (0..SIZE).map(|row| errors[row] * u[row * RANK + rank]).sum();
        (0..SIZE).for_each(|col| of_down[rank * SIZE + col] = 2.0 * back * x[col]);
        (0..SIZE).for_each(|row| of_up[row * RANK + rank] = 2.0 * errors[row] * through[rank]);
    }
    context.write::<f32>(loss)?[0] = errors.iter().map(|error| error * error).sum();
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = Config::default();
    config.optimizer.lr = 0.01;
    let builder = Session::builder(config, |_: RankId| fit).program(declare()?);
    let builder = builder.initialize(|rows, masters| {
        // U begins as zeros, so that at first nothing is changed.
        let height = if rows.weight == "adapter.up" { 0.0 } else { 0.3 };
        for (at, value) in masters.iter_mut().enumerate() {
            *value = height * ((rows.first_element() + at) as f32 * 1.7).sin();
        }
    });
    let mut session = builder.start_cpu(2).await?;
    let before = session.export().await?;
    for step in 0..300 {
        for rank in 0..2 {
            let x: Vec<f32> = (0..SIZE).map(|at| ((step * 7 + rank * 13 + at * at) as f32).sin()).collect();
            session.write_input("train", RankId::new(rank as u32), "input", &x)?;
        }
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        if step % 60 == 0 || step == 299 {
            println!("step {step:3}  loss {:.5}", report.mean_output("loss")?);
        }
    }
    let after = session.export().await?;
    for (begun, left) in before.weights.iter().zip(&after.weights) {
        let moments = left.exp_avg.len() + left.exp_avg_sq.len();
        println!("{:12} {} as {}, {moments} values of moments", left.name, left.shape, left.format);
        assert_eq!(begun.master == left.master, left.name == "base.map");
    }
    println!("the frozen weight is what it was");
    session.close().await?;
    Ok(())
}
