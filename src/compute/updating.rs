//! Closures with a rule of updates beside them.

use super::{Compute, ComputeContext, ComputeError, Surface, UpdateContext};
use crate::model::Call;

/// What carries out calls, and a rule that updates weights in place of Adam. See [`updating`].
#[derive(Clone, Copy, Debug)]
pub struct Updating<C, R> {
    closures: C,
    rule: R,
}

/// Puts `rule` beside `closures`: it updates the weights where
/// [`optimizer.own_states`](crate::config::Optimizer::own_states) is set. What it is asked to do is
/// [`Compute::update`].
///
/// This is gradient descent with momentum:
///
/// ```
/// use warpweft::prelude::*;
///
/// fn descend(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
///     let factor = context.vote()?[0].factor();
///     let rate = context.learning_rate()?[0] * context.learning_rate_scale();
///     for weight in context.weights() {
///         let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
///         let mut momentum = context.first_state(weight.id)?;
///         for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
///             *m = 0.9 * *m + factor * g;
///             *p -= rate * (*m + context.weight_decay() * *p);
///         }
///     }
///     Ok(())
/// }
///
/// let calls = on_cpu(|call, _| Err(ComputeError::closure(format!("{} is yet to be written", call.name))));
/// let mut config = Config::default();
/// config.optimizer.own_states = Some(1); // the momentum
/// let builder = Session::builder(config, move |_rank| updating(calls, descend));
/// # let _ = builder;
/// ```
pub const fn updating<S, C, R>(closures: C, rule: R) -> Updating<C, R>
where
    S: Surface,
    C: Compute<S>,
    R: FnMut(&UpdateContext<'_, S>) -> Result<(), ComputeError>,
{
    Updating { closures, rule }
}

impl<S: Surface, C, R> Compute<S> for Updating<C, R>
where
    C: Compute<S>,
    R: FnMut(&UpdateContext<'_, S>) -> Result<(), ComputeError>,
{
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self.closures.run(call, context)
    }

    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError> {
        (self.rule)(context)
    }

    fn has_rule(&self) -> bool {
        true
    }
}
