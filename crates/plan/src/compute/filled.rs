//! The check that a closure wrote all of its outputs.
//!
//! Law: **EX-4** Where the host can look into a call's memory, a plan that is bound spoiled is checked once the
//! closure has returned: no element of a gradient, of an output, or of the rows that a custom optimizer prepares or
//! transforms, may still be what the checking layer made of it ([`LeftOut`]). Elements that are no floating-point
//! numbers are not checked, for any bits may be meant there; nor are buffers that only calls see, of which a call may
//! write the part that is read.

use super::bound::BoundCall;
use super::error::ComputeError;
use super::left_out::LeftOut;
use super::surface::Surface;
use crate::layout::Region;
use crate::model::{Access, Role};
use warpweft_format::ElementType;

/// Refuses a region of which a task left elements as the checking layer had filled them. `said` is the task, and what
/// is in the region.
pub(super) fn refuse_left_out<S: Surface>(
    surface: &S,
    region: Region,
    element: ElementType,
    said: impl FnOnce() -> (String, String),
) -> Result<(), ComputeError> {
    if !matches!(element, ElementType::F32 | ElementType::Bf16) {
        return Ok(());
    }
    let Some(LeftOut { missing, first }) = surface.left_out(region, element.bytes())? else {
        return Ok(());
    };
    let ((task, what), elements) = (said(), region.bytes / element.bytes());
    Err(ComputeError::PartlyWritten { task, what, missing, elements, first })
}

impl BoundCall {
    /// Checks, when a closure has returned that got all of it spoiled, that nothing of it is left.
    pub(super) fn check_filled<S: Surface>(&self, surface: &S) -> Result<(), ComputeError> {
        for gradient in &self.gradients {
            self.check_region(surface, gradient.region, gradient.gradient.element)?;
        }
        let is_output = |buffer| self.program.spec(buffer).is_some_and(|spec| spec.role == Role::Output);
        for buffer in self.buffers.iter().filter(|buffer| buffer.access == Access::Write) {
            if is_output(buffer.buffer) {
                self.check_region(surface, buffer.region, buffer.element)?;
            }
        }
        Ok(())
    }

    fn check_region<S: Surface>(
        &self,
        surface: &S,
        region: Region,
        element: ElementType,
    ) -> Result<(), ComputeError> {
        refuse_left_out(surface, region, element, || {
            (format!("call `{}`", self.call.name), self.operand_at(region))
        })
    }
}
