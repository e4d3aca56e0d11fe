//! Trains one weight by Lion in place of AdamW, on two ranks of this machine.
//!
//! `cargo run --example 12_custom_optimizer`
//!
//! A custom optimizer gets a rank's rows of masters and main grads, and the states that it names. Lion has one where
//! Adam has two moments, and goes by the sign of a blend of it and the gradient.

#[path = "shared/one_map.rs"]
mod one_map;
#[path = "shared/print.rs"]
mod print;

use warpweft::prelude::*;
use warpweft::session::SessionBuilder;

use one_map::{SIZE, declare, feed, fit};
use print::println;

const STEPS: usize = 200;

/// Lion (Chen et al., 2023).
#[derive(Clone)]
struct Lion {
    /// How much of the momentum there is in the direction of a step.
    blends: f32,
    /// How much of the momentum is kept.
    keeps: f32,
}

impl Optimizer<CpuSurface> for Lion {
    fn name(&self) -> &'static str {
        "Lion"
    }

    fn states(&self) -> &'static [&'static str] {
        &["momentum"]
    }

    /// Updates this rank's rows of the weights of a set.
    fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        let factor = context.vote()?[0].factor(); // unscales and clips
        for weight in context.weights() {
            let Hyperparameters { learning_rate, weight_decay, .. } = context.hyperparameters(weight.id)?[0];
            let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
            let mut momentum = context.state(weight.id, "momentum")?;
            for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
                let g = factor * g;
                let blend = self.blends * *m + (1.0 - self.blends) * g;
                let sign = if blend == 0.0 { 0.0 } else { blend.signum() };
                *m = self.keeps * *m + (1.0 - self.keeps) * g;
                *p -= learning_rate * (sign + weight_decay * *p);
            }
        }
        Ok(())
    }
}

/// Trains at a rate that falls to 0, and returns the resident bytes of a rank.
async fn train(
    name: &str,
    builder: SessionBuilder<CpuSurface>,
    rate: f32,
) -> Result<usize, Box<dyn std::error::Error>> {
    let mut model = Model::builder();
    let weight = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
    let builder = builder.program(declare(&model.build(), weight, true)?).initialize(initial::zeros());
    let mut session = builder.start_cpu(2).await?;
    for step in 0..STEPS {
        session.set_learning_rate(rate * (1.0 - step as f32 / STEPS as f32))?;
        feed(&mut session, "train", step)?;
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        if step % 50 == 0 || step + 1 == STEPS {
            println!("{name:6} step {step:3}  loss {:.5}", report.mean_output("loss")?);
        }
    }
    let resident = session.plan("train")?.arena.resident_bytes;
    session.close().await?;
    Ok(resident)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let closure = on_cpu(|call, context| fit(0.0, call, context));
    let adamw = train("AdamW", Session::builder(Config::default(), move |_| closure), 0.01).await?;

    let builder = Session::builder(Config::default(), move |_| closure);
    let builder = builder.optimizer(Lion { blends: 0.9, keeps: 0.99 });
    let lion = train("Lion", builder, 0.005).await?;
    println!("Lion takes {:.0} % of AdamW's resident memory", 100.0 * lion as f64 / adamw as f64);
    Ok(())
}
