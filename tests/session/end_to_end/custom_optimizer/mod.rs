//! Custom optimizers in place of Adam: their inputs, their states, and their failures.

mod checkpoints;
mod failures;
mod updates;

use warpweft_backend::cpu::CpuSurface;
use warpweft_plan::compute::{ComputeError, UpdateContext};
use warpweft_session::checkpoint::{Checkpoint, OptimizerIdentity};
use warpweft_session::config::Config;
use warpweft_session::session::Session;
use warpweft_testing::custom_optimizer;
use warpweft_testing::trainer::{Mischief, Trainer};

type Context<'a, 'b> = &'a UpdateContext<'b, CpuSurface>;

/// Descent along the gradient, with what is kept of earlier ones where there is a list for it.
fn descent(context: Context<'_, '_>) -> Result<(), ComputeError> {
    let factor = context.vote()?[0].factor();
    for weight in context.weights() {
        let rate = context.hyperparameters(weight.id)?[0].learning_rate;
        let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
        let mut momentum = context.state(weight.id, "first").ok();
        for at in 0..master.len() {
            let mut step = factor * gradient[at];
            if let Some(momentum) = &mut momentum {
                step += 0.5 * momentum[at];
                momentum[at] = step;
            }
            master[at] -= 3.0 * rate * step;
        }
    }
    Ok(())
}

fn own(lists: u8, mut config: Config) -> Config {
    config.optimizer.custom_states = Some(lists);
    config
}

/// What checkpoints say of the optimizers here.
fn by_rows(lists: usize) -> OptimizerIdentity {
    let states = custom_optimizer::states(lists).iter().map(|state| (*state).to_owned());
    OptimizerIdentity::Custom { name: "by rows".to_owned(), states: states.collect() }
}

/// The same values, whatever made them.
fn alike(own: &Checkpoint, library: &Checkpoint) -> bool {
    let states = own.weights.first().map_or(0, |weight| weight.states.len());
    assert_eq!(
        [own, library].map(|of| of.optimizer_identity.clone()),
        [Some(by_rows(states)), Some(OptimizerIdentity::Adam)]
    );
    (own.optimizer_step, &own.weights) == (library.optimizer_step, &library.weights)
}

async fn start(
    trainer: &Trainer,
    config: Config,
    ranks: u32,
    rule: fn(Context<'_, '_>) -> Result<(), ComputeError>,
) -> Session {
    trainer.builder_with_optimizer(config, &Mischief::default(), rule).start_cpu(ranks).await.unwrap()
}
