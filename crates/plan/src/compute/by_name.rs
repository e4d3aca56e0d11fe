//! Operands of a call, by the names of its declaration.
//!
//! Law: a name means what its id would: the same checks, the same memory, the same errors. A lookup takes a few
//! comparisons of names and allocates nothing.

use super::context::ComputeContext;
use super::error::ComputeError;
use super::surface::Surface;
use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{Element, Orientation};

impl<'a, S: Surface> ComputeContext<'a, S> {
    /// [`ComputeContext::read`] of the buffer called `name`.
    ///
    /// # Errors
    /// [`ComputeError::NoBuffer`] lists the names near it; otherwise as [`ComputeContext::read`].
    pub fn read_named<T: Element>(&self, name: &str) -> Result<S::Read<'a, T>, ComputeError> {
        self.read(self.buffer_named(name)?)
    }

    /// [`ComputeContext::write`] of the buffer called `name`.
    ///
    /// # Errors
    /// [`ComputeError::NoBuffer`] lists the names near it; otherwise as [`ComputeContext::write`].
    pub fn write_named<T: Element>(&self, name: &str) -> Result<S::Write<'a, T>, ComputeError> {
        self.write(self.buffer_named(name)?)
    }

    /// [`ComputeContext::dense`] of the weight called `name`, rowwise: f32 `[rows, cols]`.
    ///
    /// # Errors
    /// [`ComputeError::NoWeight`] lists the names near it; otherwise as [`ComputeContext::dense`].
    pub fn dense_named(&self, name: &str) -> Result<S::Read<'a, f32>, ComputeError> {
        self.dense(self.weight_named(name)?, Orientation::Rowwise)
    }

    /// [`ComputeContext::gradient`] of the weight called `name`.
    ///
    /// # Errors
    /// [`ComputeError::NoWeight`] lists the names near it; otherwise as [`ComputeContext::gradient`].
    pub fn gradient_named(&self, name: &str) -> Result<S::Write<'a, f32>, ComputeError> {
        self.gradient(self.weight_named(name)?)
    }

    /// The id of the buffer called `name` in this call's program, for closures that serve several programs. The
    /// lookup is that of [`StepProgram::buffer`](crate::model::StepProgram::buffer). Whether the call may touch the
    /// buffer is checked when it is read or written.
    ///
    /// # Errors
    /// [`ComputeError::NoBuffer`] lists the names near it.
    pub fn buffer_named(&self, name: &str) -> Result<BufferId, ComputeError> {
        self.bound.program.buffer(name, &self.bound.call.name)
    }

    /// The id of the weight called `name`. Ids of weights belong to the model, so those that it declared serve all
    /// programs.
    ///
    /// # Errors
    /// [`ComputeError::NoWeight`] lists the names near it.
    pub fn weight_named(&self, name: &str) -> Result<WeightId, ComputeError> {
        self.bound.program.weight(name, &self.bound.call.name)
    }
}
