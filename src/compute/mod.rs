//! The embedder's side: the trait a trainer implements and what its calls may touch.
//!
//! Law: a closure reaches memory only through its context, and its context hands out only what
//! the call declared, in the way it was declared. What a closure captures is constant over steps;
//! whatever changes lies in declared buffers. The type that lends memory is the backend's
//! [`Surface`]; nothing here knows which.

mod bound;
mod context;
mod error;
mod surface;

pub use bound::BoundCall;
pub(crate) use bound::bound_planes;
pub use context::{ComputeContext, PlanesOf, PlanesView};
pub use error::ComputeError;
pub use surface::Surface;

use crate::id::RankId;
use crate::model::Call;

/// What a trainer implements: one value per rank, made on the thread that will own it.
///
/// It need be neither `Send` nor `Sync`. `run` is called in the plan's order, for the calls of
/// every program of the session.
pub trait Compute<S: Surface> {
    /// Carries out one call.
    ///
    /// # Errors
    /// Any error skips the step on all ranks; the report names this rank and call.
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>;
}

impl<S: Surface, F> Compute<S> for F
where
    F: FnMut(&Call, &ComputeContext<'_, S>) -> Result<(), ComputeError>,
{
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self(call, context)
    }
}

/// Makes a rank's [`Compute`] on the thread that will own it.
pub type ComputeFactory<S> = std::sync::Arc<dyn Fn(RankId) -> Box<dyn Compute<S>> + Send + Sync>;
