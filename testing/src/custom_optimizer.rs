//! Custom optimizers made of closures.
//!
//! Law: where a test names no states, they are called `first`, `second`, `third`, as many as it requests.

use warpweft_plan::compute::{
    ComputeError, Optimizer, PrepareContext, Surface, TransformContext, UpdateContext,
};

/// So many states.
#[must_use]
pub fn states(lists: usize) -> &'static [&'static str] {
    &["first", "second", "third"][..lists]
}

/// One that works on rows, whose name does not matter: its states, and what updates weights.
pub fn by_rows<R>(lists: usize, rule: R) -> Called<R> {
    Called("by rows", states(lists), rule)
}

/// One that works on rows: its name, those of its states, and what updates weights.
#[derive(Clone, Copy, Debug)]
pub struct Called<R>(pub &'static str, pub &'static [&'static str], pub R);

impl<S: Surface, R> Optimizer<S> for Called<R>
where
    R: FnMut(&UpdateContext<'_, S>) -> Result<(), ComputeError>,
{
    fn name(&self) -> &'static str {
        self.0
    }

    fn states(&self) -> &'static [&'static str] {
        self.1
    }

    fn update(&mut self, context: &UpdateContext<'_, S>) -> Result<(), ComputeError> {
        (self.2)(context)
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
