//! Custom optimizers made of closures.
//!
//! Law: their states are called `first`, `second`, `third`, as many as a test requests.

use warpweft_plan::compute::{
    ComputeError, Optimizer, PrepareContext, Surface, TransformContext, UpdateContext,
};

/// So many states.
#[must_use]
pub fn states(lists: usize) -> &'static [&'static str] {
    &["first", "second", "third"][..lists]
}

/// One that works on rows: its states, and what updates weights.
#[derive(Clone, Copy, Debug)]
pub struct ByRows<R>(pub usize, pub R);

impl<S: Surface, R> Optimizer<S> for ByRows<R>
where
    R: FnMut(&UpdateContext<'_, S>) -> Result<(), ComputeError>,
{
    fn name(&self) -> &'static str {
        "by rows"
    }

    fn states(&self) -> &'static [&'static str] {
        states(self.0)
    }

    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError> {
        (self.1)(context)
    }
}

/// One that takes whole matrices: its states, and what prepares rows, transforms a matrix, and updates weights.
#[derive(Clone, Copy, Debug)]
pub struct ByMatrices<P, T, R>(pub usize, pub P, pub T, pub R);

impl<S: Surface, P, T, R> Optimizer<S> for ByMatrices<P, T, R>
where
    P: FnMut(&PrepareContext<'_, S>) -> Result<(), ComputeError>,
    T: FnMut(&TransformContext<'_, S>) -> Result<(), ComputeError>,
    R: FnMut(&UpdateContext<'_, S>) -> Result<(), ComputeError>,
{
    fn name(&self) -> &'static str {
        "by matrices"
    }

    fn states(&self) -> &'static [&'static str] {
        states(self.0)
    }

    fn takes_whole_matrices(&self) -> bool {
        true
    }

    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError> {
        (self.3)(context)
    }

    fn prepare(&mut self, context: &PrepareContext<'_, S>) -> Result<(), ComputeError> {
        (self.1)(context)
    }

    fn transform(&mut self, context: &TransformContext<'_, S>) -> Result<(), ComputeError> {
        (self.2)(context)
    }
}
