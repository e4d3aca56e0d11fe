//! Closures with a rule of updates beside them.

use super::{
    Compute, ComputeContext, ComputeError, PrepareContext, Surface, TransformContext, UpdateContext,
};
use crate::model::Call;

/// What carries out calls, and a rule that updates weights in place of Adam. See [`updating`].
#[derive(Clone, Copy, Debug)]
pub struct Updating<C, R> {
    closures: C,
    rule: R,
}

/// Puts `rule` beside `closures`: it updates the weights where
/// `optimizer.own_states` (of the configuration) is set. What it is asked to do is
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

/// An [`Updating`] whose rule also gets matrices whole. See [`Updating::by_matrices`].
#[derive(Clone, Copy, Debug)]
pub struct UpdatingByMatrices<C, R, P, T> {
    updating: Updating<C, R>,
    prepare: P,
    transform: T,
}

impl<C, R> Updating<C, R> {
    /// Adds the two parts of the rule for weights whose matrices it needs whole, those with
    /// [`ParameterGroup::whole_matrix`](crate::model::ParameterGroup::whole_matrix) or, in a file, `whole_matrix`:
    /// `prepare` makes rows ([`Compute::prepare`]), `transform` a matrix of a matrix ([`Compute::transform`]).
    ///
    /// This updates each weight by its momentum divided by the momentum's Frobenius norm, which only a rank that has
    /// the whole matrix can take:
    ///
    /// ```
    /// use warpweft::prelude::*;
    ///
    /// fn accumulate(context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    ///     let factor = context.vote()?[0].factor();
    ///     for weight in context.weights() {
    ///         let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
    ///         let mut momentum = context.first_state(weight.id)?;
    ///         for ((m, g), row) in momentum.iter_mut().zip(gradient.iter()).zip(rows.iter_mut()) {
    ///             *m = 0.9 * *m + factor * g;
    ///             *row = *m;
    ///         }
    ///     }
    ///     Ok(())
    /// }
    ///
    /// fn normalize(context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    ///     let matrix = context.matrix()?;
    ///     let norm = matrix.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    ///     context.transformed()?.iter_mut().zip(matrix.iter()).for_each(|(to, value)| *to = value / norm);
    ///     Ok(())
    /// }
    ///
    /// fn descend(context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    ///     let rate = context.learning_rate()?[0] * context.learning_rate_scale();
    ///     for weight in context.weights() {
    ///         let rows = context.transformed(weight.id)?;
    ///         context.master(weight.id)?.iter_mut().zip(rows.iter()).for_each(|(p, row)| *p -= rate * row);
    ///     }
    ///     Ok(())
    /// }
    ///
    /// let calls = on_cpu(|call, _| Err(ComputeError::closure(format!("{} is yet to be written", call.name))));
    /// let rules = "optimizer.own_states = 1\n[[weights]]\nmatch = '*'\nwhole_matrix = true";
    /// let config = Config::from_toml_str(rules, "rules.toml")?;
    /// let builder = Session::builder(config, move |_rank| updating(calls, descend).by_matrices(accumulate, normalize));
    /// # let _ = builder;
    /// # Ok::<(), warpweft::config::ConfigError>(())
    /// ```
    pub const fn by_matrices<S, P, T>(self, prepare: P, transform: T) -> UpdatingByMatrices<C, R, P, T>
    where
        S: Surface,
        Self: Compute<S>,
        P: FnMut(&PrepareContext<'_, S>) -> Result<(), ComputeError>,
        T: FnMut(&TransformContext<'_, S>) -> Result<(), ComputeError>,
    {
        UpdatingByMatrices { updating: self, prepare, transform }
    }
}

impl<S: Surface, C, R, P, T> Compute<S> for UpdatingByMatrices<C, R, P, T>
where
    Updating<C, R>: Compute<S>,
    P: FnMut(&PrepareContext<'_, S>) -> Result<(), ComputeError>,
    T: FnMut(&TransformContext<'_, S>) -> Result<(), ComputeError>,
{
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self.updating.run(call, context)
    }

    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError> {
        self.updating.update(context)
    }

    fn has_rule(&self) -> bool {
        true
    }

    fn prepare(&mut self, context: &PrepareContext<'_, S>) -> Result<(), ComputeError> {
        (self.prepare)(context)
    }

    fn transform(&mut self, context: &TransformContext<'_, S>) -> Result<(), ComputeError> {
        (self.transform)(context)
    }

    fn has_matrix_rule(&self) -> bool {
        true
    }
}
