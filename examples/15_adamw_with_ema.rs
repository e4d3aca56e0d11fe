//! AdamW that keeps an exponential moving average of the weights, evaluates it and writes it for other programs.
//!
//! `cargo run --example 15_adamw_with_ema`
//!
//! The average is an optimizer state like the two moments: every rank has its rows, checkpoints have it, and any
//! number of ranks goes on from it. To evaluate it, the weights that it is are imported for a while.

#[path = "shared/one_map.rs"]
mod one_map;
#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;

use one_map::{SIZE, declare, feed, fit};
use print::println;

const STEPS: usize = 150;

#[derive(Clone)]
struct AdamWithAverage {
    keeps: f32,
}

impl Optimizer<CpuSurface> for AdamWithAverage {
    fn name(&self) -> &'static str {
        "AdamW with EMA"
    }

    fn states(&self) -> &'static [&'static str] {
        &["exp_avg", "exp_avg_sq", "average"]
    }

    fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let (factor, step) = (context.vote()?[0].factor(), context.vote()?[0].step);
        for weight in context.weights() {
            let Hyperparameters { learning_rate, weight_decay, beta1, beta2 } =
                context.hyperparameters(weight.id)?[0];
            let corrections = [beta1, beta2].map(|beta| 1.0 - beta.powi(step as i32));
            let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
            let [mut first, mut second, mut average] = [
                context.state(weight.id, "exp_avg")?,
                context.state(weight.id, "exp_avg_sq")?,
                context.state(weight.id, "average")?,
            ];
            // It begins with the weights after the first step, also of those that were frozen until now.
            let begins = average.iter().all(|value| *value == 0.0);
            for (at, p) in master.iter_mut().enumerate() {
                let g = factor * gradient[at];
                first[at] = beta1 * first[at] + (1.0 - beta1) * g;
                second[at] = beta2 * second[at] + (1.0 - beta2) * g * g;
                let (m, v) = (first[at] / corrections[0], second[at] / corrections[1]);
                *p -= learning_rate * (m / (v.sqrt() + 1e-8) + weight_decay * *p);
                let keeps = if begins { 0.0 } else { self.keeps };
                average[at] = keeps * average[at] + (1.0 - keeps) * *p;
            }
        }
        Ok(())
    }
}

/// The mean loss over some inputs that training has not seen.
async fn evaluate(session: &mut Session) -> Result<f32, SessionError> {
    let mut sum = 0.0;
    for at in 0..20 {
        feed(session, "evaluate", 10_000 + at)?;
        sum += session.step("evaluate").await?.mean_output("loss")?;
    }
    Ok(sum / 20.0)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    let weight = model.sharded("map", SIZE, SIZE, Format::F32)?;
    let model = model.build();
    let closure = |_| on_cpu(|call, context| fit(0.3, call, context));
    let builder = Session::builder(Config::default(), closure);
    let builder = builder.optimizer(AdamWithAverage { keeps: 0.95 });
    let builder = builder.program(declare(&model, weight, true)?).program(declare(&model, weight, false)?);
    let mut session = builder.initialize(initial::zeros()).start_cpu(2).await?;
    session.set_learning_rate(0.01)?;
    for step in 0..STEPS {
        feed(&mut session, "train", step)?;
        session.step("train").await?;
    }
    let trained = session.export().await?;
    let averaged = trained.weights_of_state("average")?;
    let last = evaluate(&mut session).await?;
    session.import(&averaged).await?;
    let average = evaluate(&mut session).await?;
    println!("held-out loss of the last weights {last:.4}, of their average {average:.4}");
    assert!(average < last);

    // The average for other programs, and training goes on where it was.
    let file = std::env::temp_dir().join(format!("warpweft-ema-{}.safetensors", std::process::id()));
    averaged.save_weights(&file, ElementType::Bf16, |weight| Some(format!("{weight}.weight")))?;
    std::fs::remove_file(&file)?;
    session.import(&trained).await?;
    assert!(session.export().await? == trained);
    session.close().await?;
    Ok(())
}
