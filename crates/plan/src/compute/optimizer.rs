//! Custom optimizers: what updates the weights in place of the built-in Adam.
//!
//! Laws:
//! - An optimizer works element by element, or row by row of the columns that the rank has, which are all but of a
//!   row-parallel weight: a rank has some of the rows of a weight, and which depends
//!   on the number of ranks. One that needs whole matrices, as Muon does, has three parts: it *prepares* the rank's
//!   rows of each matrix, *transforms* the matrix on the one rank that gets it whole, and *updates* by the rows that
//!   come back.
//! - Every rank of a replicated weight has all of it and must come to the same bits; so must every replica.
//! - What changes from step to step is in memory, which a captured step reads: vote, hyperparameters and state.

use super::{Borrower, Compute, ComputeError, PrepareContext, Surface, TransformContext, UpdateContext};
use super::{BoundPreparation, BoundTransformation, BoundUpdate};
use crate::layout::Region;
use crate::model::Call;
use warpweft_base::id::RankId;

/// A custom optimizer. A session gets it by `SessionBuilder::optimizer`; without one, Adam updates the weights as the
/// configuration says.
///
/// There is one value per rank, on the thread that owns the rank. Whatever it keeps of a weight is in the lists that
/// [`Optimizer::states`] names, so that checkpoints have it and any number of ranks goes on from it. What the value
/// itself holds is constant over steps.
///
/// This is gradient descent with momentum:
///
/// ```
/// use warpweft::prelude::*;
///
/// #[derive(Clone)]
/// struct Momentum {
///     keeps: f32,
/// }
///
/// impl Optimizer<CpuSurface> for Momentum {
///     fn name(&self) -> &'static str {
///         "momentum"
///     }
///
///     fn states(&self) -> &'static [&'static str] {
///         &["momentum"]
///     }
///
///     fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
///         let factor = context.vote()?[0].factor(); // unscales and clips
///         for weight in context.weights() {
///             let Hyperparameters { learning_rate, weight_decay, .. } = context.hyperparameters(weight.id)?[0];
///             let (mut master, gradient) = (context.master(weight.id)?, context.main_grad(weight.id)?);
///             let mut momentum = context.state(weight.id, "momentum")?;
///             for ((p, m), g) in master.iter_mut().zip(momentum.iter_mut()).zip(gradient.iter()) {
///                 *m = self.keeps * *m + factor * g;
///                 *p -= learning_rate * (*m + weight_decay * *p);
///             }
///         }
///         Ok(())
///     }
/// }
///
/// let calls = on_cpu(|call, _| Err(ComputeError::closure(format!("{} is yet to be written", call.name))));
/// let builder = Session::builder(Config::default(), move |_rank| calls).optimizer(Momentum { keeps: 0.9 });
/// # let _ = builder;
/// ```
///
/// # On a GPU
///
/// It enqueues on the stream of its context, as closures do ([`Compute`]), also in a step that will turn out to be
/// skipped: its kernels read the [vote](super::OptimizerContext::vote), and where that
/// [skips](crate::op::Vote::skips) they change nothing. Where a step is captured it is called to be captured, before
/// the step's dynamic calls run, and not in later steps. One that needs the rank's GPU to be made goes to
/// `SessionBuilder::try_optimizer`.
///
/// # Whole matrices
///
/// For weights with [`ParameterGroup::whole_matrix`](crate::model::ParameterGroup::whole_matrix) (in a file,
/// `whole_matrix`). This one divides the momentum of a matrix by its Frobenius norm, which only a rank that has the
/// whole matrix can take:
///
/// ```
/// use warpweft::compute::{PrepareContext, TransformContext};
/// use warpweft::prelude::*;
///
/// #[derive(Clone)]
/// struct Normalized;
///
/// impl Optimizer<CpuSurface> for Normalized {
///     fn name(&self) -> &'static str {
///         "normalized momentum"
///     }
///
///     fn states(&self) -> &'static [&'static str] {
///         &["momentum"]
///     }
///
///     fn takes_whole_matrices(&self) -> bool {
///         true
///     }
///
///     fn prepare(&mut self, context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
///         let factor = context.vote()?[0].factor();
///         for weight in context.weights() {
///             let (gradient, mut rows) = (context.main_grad(weight.id)?, context.prepared(weight.id)?);
///             let mut momentum = context.state(weight.id, "momentum")?;
///             for ((m, g), row) in momentum.iter_mut().zip(gradient.iter()).zip(rows.iter_mut()) {
///                 *m = 0.9 * *m + factor * g;
///                 *row = *m;
///             }
///         }
///         Ok(())
///     }
///
///     fn transform(&mut self, context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
///         let matrix = context.matrix()?;
///         let norm = matrix.iter().map(|value| value * value).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
///         context.transformed()?.iter_mut().zip(matrix.iter()).for_each(|(to, value)| *to = value / norm);
///         Ok(())
///     }
///
///     fn update(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
///         for weight in context.weights() {
///             let rate = context.hyperparameters(weight.id)?[0].learning_rate;
///             let rows = context.transformed(weight.id)?;
///             context.master(weight.id)?.iter_mut().zip(rows.iter()).for_each(|(p, row)| *p -= rate * row);
///         }
///         Ok(())
///     }
/// }
/// # let _ = Normalized;
/// ```
pub trait Optimizer<S: Surface> {
    /// Its name, in messages and in checkpoints: a session whose optimizer has another one refuses its state.
    fn name(&self) -> &'static str;

    /// The names of the lists of f32 state that are kept beside the master of every weight that trains, up to 8; zeros
    /// before the first step, and before a later one of a weight that was frozen until then. Checkpoints have them too.
    fn states(&self) -> &'static [&'static str];

    /// Whether it has [`Optimizer::prepare`] and [`Optimizer::transform`]. A session does not start if a weight is to
    /// be updated as a whole matrix and the optimizer does not take such, or the other way around.
    fn takes_whole_matrices(&self) -> bool {
        false
    }

    /// Updates weights. In a step that has an optimizer it is called after the vote, on every rank, once for each set
    /// of weights of one format, placement and parameter group, or for each round of those whose matrices it takes
    /// whole. On the CPU it is not called in a step that is skipped.
    ///
    /// # Errors
    /// Any error ends the session, because it comes too late to skip the step: some weights may be updated by then, on
    /// some ranks. While a step is captured nothing has run yet: there is no CUDA graph, and the step is issued.
    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError>;

    /// Prepares the rank's rows of matrices that are taken whole, of main grads and state. It is called after the vote,
    /// on every rank, once for each round of such weights; [`Optimizer::update`] is called for them later in the step.
    ///
    /// # Errors
    /// As of [`Optimizer::update`]. The default says that there is no such part.
    fn prepare(&mut self, context: &PrepareContext<'_, S>) -> Result<(), ComputeError> {
        let _ = context;
        Err(ComputeError::NoMatrixPart { part: "Optimizer::prepare" })
    }

    /// Transforms a matrix whose rows all ranks prepared. It is called after [`Optimizer::prepare`], on one rank of
    /// each replica for each matrix, and on every rank for a matrix of which each has all. What it makes of a matrix
    /// must not depend on the rank.
    ///
    /// # Errors
    /// As of [`Optimizer::prepare`].
    fn transform(&mut self, context: &TransformContext<'_, S>) -> Result<(), ComputeError> {
        let _ = context;
        Err(ComputeError::NoMatrixPart { part: "Optimizer::transform" })
    }
}

/// The calls of a rank with a custom optimizer beside them, as a session hands them to the rank's backend.
#[doc(hidden)]
pub struct WithOptimizer<S: Surface> {
    pub calls: Box<dyn Compute<S>>,
    pub optimizer: Box<dyn Optimizer<S>>,
}

impl<S: Surface> Compute<S> for WithOptimizer<S> {
    fn run(&mut self, call: &Call, context: &super::ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self.calls.run(call, context)
    }

    fn optimizer(&mut self) -> Option<&mut dyn Optimizer<S>> {
        Some(self.optimizer.as_mut())
    }
}

impl<S: Surface> std::fmt::Debug for WithOptimizer<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WithOptimizer").field("optimizer", &self.optimizer.name()).finish_non_exhaustive()
    }
}

/// One task of a custom optimizer, whichever part of it that is: backends carry out, name and report all parts alike.
#[derive(Debug)]
#[doc(hidden)]
pub enum OptimizerTask {
    /// Prepares rows of matrices.
    Prepare(BoundPreparation),
    /// Transforms a matrix.
    Transform(BoundTransformation),
    /// Updates weights.
    Update(BoundUpdate),
}

impl OptimizerTask {
    /// Carries out the task on `rank` by the optimizer beside `closures`, which gets its memory from `surface`.
    ///
    /// # Errors
    /// [`ComputeError::NoOptimizer`] without one; what it or the surface says; [`ComputeError::NotUpdated`] for a
    /// master, [`ComputeError::NotPrepared`] for rows and [`ComputeError::NotTransformed`] for a matrix that it did
    /// not request.
    pub fn run<S: Surface>(
        &self,
        rank: RankId,
        surface: &S,
        closures: &mut dyn Compute<S>,
    ) -> Result<(), ComputeError> {
        let optimizer = closures.optimizer().ok_or(ComputeError::NoOptimizer)?;
        match self {
            Self::Prepare(bound) => bound.run(rank, surface, optimizer),
            Self::Transform(bound) => bound.run(rank, surface, optimizer),
            Self::Update(bound) => bound.run(rank, surface, optimizer),
        }
    }
}

impl Borrower for OptimizerTask {
    fn name(&self) -> &str {
        match self {
            Self::Prepare(bound) => &bound.name,
            Self::Transform(bound) => &bound.name,
            Self::Update(bound) => &bound.name,
        }
    }

    fn name_at(&self, region: Region) -> String {
        match self {
            Self::Prepare(bound) => bound.operand_at(region),
            Self::Transform(bound) => bound.operand_at(region),
            Self::Update(bound) => bound.operand_at(region),
        }
    }
}
