//! What a closure left as the checking layer had filled it.
//!
//! Law: **EX-4** Where the host can look into a call's memory, a plan that is bound spoiled is looked at once the
//! closure has returned: no element of a gradient or of an output may still be what [`SPOILED`] makes of it. What
//! is added to it is that very NaN again, so a closure that adds instead of writing shows too. Elements that are
//! no floating-point numbers are not looked at, for any bits may be meant there; nor are buffers that only calls
//! see, of which a call may write the part that is read.

use super::SPOILED;
use super::bound::BoundCall;
use super::error::ComputeError;
use super::surface::Surface;
use crate::format::ElementType;
use crate::layout::Region;
use crate::model::{Access, Role};

/// Elements of a gradient or output that a closure left as they were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// How many there are.
    pub missing: usize,
    /// The first, counted from 0.
    pub first: usize,
}

impl LeftOut {
    /// What is left out among the elements of `element` bytes in `bytes`, if anything is.
    #[must_use]
    pub fn among(bytes: &[u8], element: usize) -> Option<Self> {
        let is_left = |element: &[u8]| element.iter().all(|byte| *byte == SPOILED);
        let mut left = bytes.chunks_exact(element.max(1)).enumerate().filter(|(_, element)| is_left(element));
        let (first, _) = left.next()?;
        Some(Self { missing: 1 + left.count(), first })
    }
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
        if !matches!(element, ElementType::F32 | ElementType::Bf16) {
            return Ok(());
        }
        let Some(LeftOut { missing, first }) = surface.left_out(region, element.bytes())? else {
            return Ok(());
        };
        let (call, what) = (self.call.name.clone(), self.name_at(region));
        let elements = region.bytes / element.bytes();
        Err(ComputeError::PartlyWritten { call, what, missing, elements, first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EX-4
    #[test]
    fn elements_that_are_filled_through_and_through_are_counted_and_others_are_not() {
        let spoiled = f32::from_bits(u32::MAX);
        let among = |values: &[f32]| LeftOut::among(bytemuck::cast_slice(values), 4);
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[1.0, f32::NAN, -f32::NAN, f32::INFINITY]), None);
        assert_eq!(among(&[1.0, spoiled, 0.0, spoiled]), Some(LeftOut { missing: 2, first: 1 }));
        let halves = [half::bf16::from_bits(u16::MAX), half::bf16::NAN];
        assert_eq!(LeftOut::among(bytemuck::cast_slice(&halves), 2), Some(LeftOut { missing: 1, first: 0 }));
    }
}
